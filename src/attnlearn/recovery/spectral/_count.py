"""Count: how many heads, decided by the floor and judged on select examples.

The number of heads is the number of singular values above ABOVE_FLOOR times the noise floor (theory, section
3). It is then tried: the span is unmixed with that number and with one head fewer and one more, on fit
examples, and the three are judged on *select* examples. The floor decides; a head whose removal does not hurt
there is reported as doubtful. When the weakest value is close to the floor the number of examples at which it
would stand clear of it is stated.

Cost: a few unmixings of a few hundred sequences; the neighbours start from the answer.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from attnlearn.engine import Tools
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._rows import Rows, RowSource
from attnlearn.recovery.spectral._state import Problem, State
from attnlearn.recovery.spectral._varpro import Fit, SpanModel, random_start


def count(problem: Problem, state: State, tools: Tools) -> tuple[State, dict]:
    """The number of heads, with the residuals of its neighbours as evidence."""
    values, floor = state.singular_values, state.floor
    visible = int(np.sum(values > calibration.ABOVE_FLOOR * floor))
    heads = visible if problem.num_heads is None else problem.num_heads
    heads = max(1, min(heads, len(values)))
    evidence = {
        "heads": heads,
        "visible": visible,
        "given": problem.num_heads,
        "weakest_over_floor": float(values[heads - 1] / floor),
        "next_over_floor": float(values[heads] / floor) if heads < len(values) else None,
        "examples_for_clear_view": _clear(problem, float(values[heads - 1]), floor),
    }
    rng = tools.rng("count")
    model, other = span_models(problem, state, min(heads + 1, len(values)), rng)
    a, residuals = _neighbours(model, other, heads, rng)
    evidence["select_residuals"] = {str(number): value for number, value in sorted(residuals.items())}
    fewer = residuals.get(heads - 1)
    evidence["doubtful"] = bool(fewer is not None and fewer < calibration.FEWER_WORSE * residuals[heads])
    return dataclasses.replace(state, num_heads=heads, coordinates=a), evidence


def _clear(problem: Problem, weakest: float, floor: float) -> int:
    signal = np.sqrt(max(weakest**2 - floor**2, (0.1 * floor) ** 2))
    return int(np.ceil(problem.examples.num * (calibration.VISIBLE_AT * floor / signal) ** 2))


def _neighbours(
    model: SpanModel, other: SpanModel, heads: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "m m"], dict[int, float]]:
    """Coordinates of `heads` heads, and the residual on select examples with one fewer, as many, one more."""
    exact = model.leading(heads)
    a, fit, _, _ = best_start(exact, heads, rng)
    residuals = {heads: other.leading(heads).judge(a, fit.mixing)}
    if heads > 1:
        fewer = model.leading(heads - 1)
        weight = np.linalg.norm(fit.mixing, axis=1) * np.linalg.norm(a, axis=1)
        start = np.delete(a, np.argmin(weight), axis=0)[:, : heads - 1]
        start, found, _ = fewer.descend(start)
        residuals[heads - 1] = other.leading(heads - 1).judge(start, found.mixing)
    if model.l > heads:
        start = np.zeros((heads + 1, heads + 1))
        start[:heads, :heads] = a
        start[heads] = random_start(rng, 1, model.spread)[0]
        start, found, _ = model.descend(start)
        residuals[heads + 1] = other.judge(start, found.mixing)
    return a, residuals


def span_models(
    problem: Problem, state: State, heads: int, rng: np.random.Generator
) -> tuple[SpanModel, SpanModel]:
    """The span model on a few fit sequences and on a few select sequences, with the same output directions."""
    examples, split = problem.examples, problem.split
    o, k = examples.out_dim, examples.tokens
    q = min(o, calibration.OUTPUT_DIRECTIONS)
    directions = np.linalg.qr(rng.standard_normal((o, q)))[0]
    queries = np.arange(k) if k <= 16 else np.sort(rng.choice(k, 16, replace=False))
    nuisance = state.linear.shape[0]
    rows = calibration.ROWS_PER_UNKNOWN * (2 * heads**2 / q + nuisance)
    wanted = max(calibration.SEQUENCES_LEAST, int(np.ceil(rows / len(queries))))
    basis = state.query_basis[:heads], state.value_basis[:heads], directions, queries

    def some(indices: Int[np.ndarray, "i"], most: int) -> Rows:
        chosen = np.sort(rng.permutation(indices)[:most])
        (rows,) = RowSource(problem, state, chosen).whole()
        return rows

    select = max(calibration.SELECT_SEQUENCES, int(np.ceil(3 * nuisance / len(queries))))
    return SpanModel(some(split.fit, wanted), *basis), SpanModel(some(split.select, select), *basis)


def best_start(
    model: SpanModel,
    heads: int,
    rng: np.random.Generator,
    first: Float[np.ndarray, "m l"] | None = None,
) -> tuple[Float[np.ndarray, "m l"], Fit, list[float], list[int]]:
    """The best of several starts, `first` and random ones; two that agree end the search."""
    best, shares, steps = None, [], []
    for number in range(calibration.STARTS):
        start = random_start(rng, heads, model.spread) if first is None or number else first
        a, fit, taken = model.descend(start)
        steps.append(taken)
        agree = best is not None and abs(fit.share - best[1].share) < calibration.AGREE * best[1].share
        shares.append(fit.share)
        if best is None or fit.share < best[1].share:
            best = a, fit
        if agree and best[1].share <= min(shares):
            break
    return *best, shares, steps
