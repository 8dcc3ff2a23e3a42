"""Count: how many heads, decided by the floor and judged on select examples.

At most as many heads as singular values above ABOVE_FLOOR times the noise floor (theory, section 3). That many are
unmixed on fit examples and judged on *select* examples. The unmixing begins where the second order puts the heads
(`_second_order`), and at random where its optimum lies elsewhere. A value may stand above the floor without being a head: the
bias of the first-order model does when there are many examples, and the swap of a head of effective rank one is as
large as the head. So the least head is taken away, the others moved to their new optimum inside the same span, and
as long as that does not raise the residual on select examples the smaller number is kept. One more than the answer
is tried as well.

Fails with TOO_FEW_EXAMPLES when the values run into the floor without a gap: then a head may be hidden below; and with
TOKENS_DEGENERATE when more values than layers have heads stand out on tokens that depend on each other.
Cost: a few unmixings of a few hundred sequences; every candidate starts from its neighbour.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnlearn.engine import Engine, Stop, Tools
from attnlearn.engine._threads import in_order
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._blocks import LOCAL
from attnlearn.recovery.spectral._moment import moment
from attnlearn.recovery.spectral._rows import Rows, RowSource
from attnlearn.recovery.spectral._second_order import second_order_start
from attnlearn.recovery.spectral._state import Problem, State, looked_at, unmodelled
from attnlearn.recovery.spectral._varpro import Fit, SpanModel, random_start


def count(problem: Problem, state: State, tools: Tools) -> tuple[State, dict]:
    """The number of heads, with the residuals of its neighbours as evidence; all examples are asked if some are too few."""
    problem = looked_at(problem, state)
    try:
        return _count(problem, state, tools)
    except Stop as stop:
        seen_all = state.moment_examples in (None, len(problem.split.fit))
        if stop.outcome_name != "TOO_FEW_EXAMPLES" or seen_all:
            raise
    state, _ = moment(problem, state, tools, every=True)
    return _count(problem, state, tools)


def _count(problem: Problem, state: State, tools: Tools) -> tuple[State, dict]:
    values, floor = state.singular_values, state.floor
    visible = int(np.sum(values > calibration.ABOVE_FLOOR * floor))
    given = problem.num_heads
    if (
        given is None
        and visible > min(calibration.COUNT_MOST, len(state.inverse))
        and unmodelled(problem, state)
    ):
        raise Stop("TOKENS_DEGENERATE", {"visible": visible}, state)
    most = max(1, min(visible if given is None else given, len(values)))
    rng = tools.rng("count")
    model, other = span_models(problem, state, min(most + 1, len(values)), rng)
    narrow = model.leading(most)
    start, first = near_estimate(narrow, second_order_start(problem, state, most, rng))
    if start is None:
        start = best_start(narrow, most, rng, first, engine=tools.engine)
    a, residuals = _judged(model, other, start, rng, prune=given is None)
    heads = len(a)
    weakest = float(values[heads - 1])
    evidence = {
        "heads": heads,
        "visible": visible,
        "given": given,
        "weakest_over_floor": weakest / floor,
        "next_over_floor": float(values[visible] / floor) if visible < len(values) else None,
        "starts": len(start.shares),
        "examples_for_clear_view": _clear(problem, state, weakest),
        "select_residuals": {str(number): value for number, value in sorted(residuals.items())},
    }
    if given is None and _crowded(values, floor, heads, visible):
        suggested = (calibration.SUGGESTED_AT / calibration.VISIBLE_AT) ** 2
        needed = max(
            calibration.MORE_LEAST * problem.examples.num, suggested * evidence["examples_for_clear_view"]
        )
        raise Stop("TOO_FEW_EXAMPLES", evidence | {"examples_needed": int(np.ceil(needed))}, state)
    found = {"num_heads": heads, "coordinates": a, "agreed": start.agreed, "unexplained": residuals[heads]}
    return dataclasses.replace(state, **found), evidence


def _crowded(values: np.ndarray, floor: float, heads: int, visible: int) -> bool:
    """Whether the values run into the floor without a gap, or of heads little above it one is kept and another is not."""
    if heads >= len(values):
        return False
    alike = values[heads - 1] < calibration.GAP * values[heads]
    if heads < visible and alike and values[heads - 1] < calibration.ALIKE_BELOW * floor:
        return True
    if values[heads - 1] > calibration.VISIBLE_AT * floor:
        return False
    hidden = values[heads] > calibration.NOISE_MOST * floor
    return bool(heads < visible or hidden or alike)


def _clear(problem: Problem, state: State, weakest: float) -> int:
    """Examples, all sides of the split included, with which the weakest head would stand out clearly."""
    signal = np.sqrt(max(weakest**2 - state.floor**2, (0.1 * state.floor) ** 2))
    share = state.moment_examples / len(problem.split.fit)
    return int(np.ceil(problem.examples.num * share * (calibration.VISIBLE_AT * state.floor / signal) ** 2))


def _judged(
    model: SpanModel, other: SpanModel, start: Unmixed, rng: np.random.Generator, *, prune: bool
) -> tuple[Float[np.ndarray, "m l"], dict[int, float]]:
    """Coordinates of the heads that are needed, and the residual on select examples by number of heads.

    One head fewer and one more are tried side by side; as long as fewer do as well, fewer still.
    """
    a, fit = start.coordinates, start.fit
    most = len(a)
    narrow, other_narrow = model.leading(most), other.leading(most)
    tasks = [partial(_one_fewer, narrow, a, fit)] if most > 1 else []
    tasks += [partial(_one_more, model, a, rng)] if model.l > most else []
    tried = [(len(found[0]), found) for found in in_order(lambda task: task(), tasks)]
    residuals = {most: other_narrow.judge(a, fit.mixing)}
    for heads, (coordinates, found) in tried:
        residuals[heads] = (other_narrow if heads < most else other).judge(coordinates, found.mixing)
    fewer = dict(tried).get(most - 1)
    while prune and fewer is not None:
        if residuals[len(a) - 1] > calibration.FEWER_WORSE * residuals[len(a)]:
            break
        a, fit = fewer
        residuals.pop(most + 1, None)  # no neighbour of the answer
        fewer = _one_fewer(narrow, a, fit) if len(a) > 1 else None
        if fewer is not None:
            residuals[len(a) - 1] = other_narrow.judge(fewer[0], fewer[1].mixing)
    return a, residuals


def _one_fewer(model: SpanModel, a: np.ndarray, fit: Fit) -> tuple[np.ndarray, Fit]:
    """The optimum after the least head is taken away."""
    size = np.linalg.norm(fit.mixing, axis=1) * np.linalg.norm(a * model.spread, axis=1)
    return model.descend(np.delete(a, np.argmin(size), axis=0))[:2]


def _one_more(model: SpanModel, a: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, Fit]:
    """Close to the optimum from these heads and a random one."""
    start = np.zeros((len(a) + 1, model.l))
    start[:-1, : a.shape[1]] = a
    start[-1] = random_start(rng, 1, model.spread)[0]
    return model.descend(start, calibration.ONE_MORE_STEPS)[:2]


def span_models(
    problem: Problem, state: State, vectors: int, rng: np.random.Generator
) -> tuple[SpanModel, SpanModel]:
    """The span model on a few fit sequences and on a few select sequences, with the same output directions."""
    examples, split = problem.examples, problem.split
    o, k = examples.out_dim, examples.tokens
    q = min(o, calibration.OUTPUT_DIRECTIONS)
    directions = np.linalg.qr(rng.standard_normal((o, q)))[0]
    queries = np.arange(k) if k <= 16 else np.sort(rng.choice(k, 16, replace=False))
    nuisance = state.linear.shape[0]
    rows = calibration.ROWS_PER_UNKNOWN * (2 * vectors**2 / q + nuisance)
    wanted = max(calibration.SEQUENCES_LEAST, int(np.ceil(rows / len(queries))))
    basis = state.query_basis[:vectors], state.value_basis[:vectors], directions, queries

    def some(indices: Int[np.ndarray, "i"], most: int) -> Rows:
        chosen = np.sort(rng.permutation(indices)[:most])
        (rows,) = RowSource(problem, state, chosen).whole()
        return rows

    select = max(calibration.SELECT_SEQUENCES, int(np.ceil(3 * nuisance / len(queries))))
    return SpanModel(some(split.fit, wanted), *basis), SpanModel(some(split.select, select), *basis)


class Unmixed(NamedTuple):
    """The best of several starts: its coordinates and fit, the residual share and number of steps of every start, and whether two
    of them, or a start and the second order, agreed."""

    coordinates: Float[np.ndarray, "m l"]
    fit: Fit
    shares: list[float]
    steps: list[int]
    agreed: bool


def near_estimate(
    model: SpanModel, estimate: Float[np.ndarray, "m l"] | None
) -> tuple[Unmixed | None, Float[np.ndarray, "m l"] | None]:
    """The optimum from an estimate of the heads' directions, if it lies there; otherwise where that start ended, if anywhere."""
    if estimate is None:
        return None, None
    thin = model.thinned(calibration.START_ROWS)
    sized = [size * estimate for size in calibration.TENSOR_SIZES]
    a, fit, taken = thin.descend(min(sized, key=lambda start: thin.solve(start).share))
    moved, kept = (part * model.spread for part in (a, estimate))
    lengths = np.linalg.norm(moved, axis=1) * np.linalg.norm(kept, axis=1)
    if not np.all(np.einsum("hl,hl->h", moved, kept) >= calibration.TENSOR_ALIKE * lengths):
        return None, a
    share = fit.share
    a, fit, more = model.descend(a)
    return Unmixed(a, fit, [share], [taken, more], agreed=True), a


def best_start(
    model: SpanModel,
    heads: int,
    rng: np.random.Generator,
    first: Float[np.ndarray, "m l"] | None = None,
    engine: Engine = LOCAL,
) -> Unmixed:
    """The best of several starts, `first` and random ones, on some of the rows; two that agree end the search.

    The best goes on to its optimum on all rows. Starts are tried on threads, or on the workers of an engine all at once, and
    those after the end of the search are not looked at.
    """
    best, shares, steps = None, [], []
    starts = [random_start(rng, heads, model.spread) for _ in range(calibration.STARTS)]
    starts = starts if first is None else [first, *starts[1:]]
    descend = model.thinned(calibration.START_ROWS).descend
    for a, fit, taken in in_order(descend, starts) if engine.in_process else engine.map(descend, starts):
        steps.append(taken)
        shares.append(fit.share)
        if best is None or fit.share < best[1]:
            best = a, fit.share
        if _agreed(shares):
            break
    a, fit, taken = model.descend(best[0])
    return Unmixed(a, fit, shares, [*steps, taken], _agreed(shares))


def _agreed(shares: list[float]) -> bool:
    return sum(share <= (1 + calibration.AGREE) * min(shares) for share in shares) > 1
