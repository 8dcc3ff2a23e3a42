"""Unmixing inside the span: the m^2 numbers that turn basis vectors into heads, from one start or from several.

The span model (`_varpro`) lives on a few hundred sequences and a few output directions. Starts are compared on a third of its
rows; the best one goes on to its optimum on all of them.

Cost: a few descents of m^2 unknowns. What can fail: starts that end in different optima (`agreed` is then False).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnlearn.engine import Engine
from attnlearn.engine._threads import in_order
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._blocks import LOCAL
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._rows import RowSource
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment._varpro import Fit, SpanModel, random_start
from attnlearn.solve._batch import WhiteBatch


def span_models(
    problem: Problem,
    signals: Signals,
    query_basis: Float[np.ndarray, "l r1 r"],
    value_basis: Float[np.ndarray, "l r o"],
    rng: np.random.Generator,
) -> tuple[SpanModel, SpanModel]:
    """The span model on a few fit sequences and on a few select sequences, with the same output directions."""
    examples, vectors = problem.examples, len(query_basis)
    o, k = examples.out_dim, examples.tokens
    q = min(o, calibration.OUTPUT_DIRECTIONS)
    directions = np.linalg.qr(rng.standard_normal((o, q)))[0]
    queries = (
        np.sort(rng.choice(k, 2 * calibration.OUTPUT_DIRECTIONS, replace=False))
        if k > 2 * calibration.OUTPUT_DIRECTIONS
        else np.arange(k)
    )
    nuisance = signals.linear.shape[0]
    rows = calibration.ROWS_PER_UNKNOWN * (2 * vectors**2 / q + nuisance)
    wanted = max(calibration.SAMPLE, int(np.ceil(rows / len(queries))))
    basis = query_basis, value_basis, directions, queries

    def some(indices: Int[np.ndarray, "i"], most: int) -> WhiteBatch:
        chosen = np.sort(rng.permutation(indices)[:most])
        (rows,) = RowSource(examples, signals, chosen).whole()
        return rows

    select = max(2 * calibration.SAMPLE, int(np.ceil(3 * nuisance / len(queries))))
    return SpanModel(some(signals.fit, wanted), *basis), SpanModel(some(signals.select, select), *basis)


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
    thin = model.thinned(calibration.EQUATIONS_PER_UNKNOWN / calibration.ROWS_PER_UNKNOWN)
    sized = [size * estimate for size in calibration.CLEAR ** np.arange(calibration.FEW)]
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
    best: Any = None
    shares, steps = [], []
    starts = [random_start(rng, heads, model.spread) for _ in range(calibration.SPARE)]
    starts = starts if first is None else [first, *starts[1:]]
    descend = model.thinned(calibration.EQUATIONS_PER_UNKNOWN / calibration.ROWS_PER_UNKNOWN).descend
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
    return sum(share <= (1 + calibration.ALIKE) * min(shares) for share in shares) > 1
