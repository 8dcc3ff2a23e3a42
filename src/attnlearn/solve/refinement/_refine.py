"""Refine: least squares on every parameter of a layer.

Minimises sum ‖F(x) - y‖^2 over Theta_i (whole, or of a given rank), c_i, W_i and b. W and b are eliminated
exactly (`_regress`), the scores move by Levenberg-Marquardt steps (`_descent`) in the coordinates of a Kronecker
preconditioner (`_precondition`), tokens are made white first (`_chunks`). Four things are decided apart from each other:

| file | decides |
|---|---|
| `_schedule` | which examples, and which outputs, the descent works on |
| `_precision` | whether residuals and inner solves are computed in float32 or float64 |
| `_rank` | the rank of the scores |
| `_stopping` | when to stop, in the words of `Refined.stop` |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._precision import promoted
from attnlearn._types import ArrayLike
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._attend import split_linear
from attnlearn.solve._chunks import on_threads
from attnlearn.solve._regress import checked_examples
from attnlearn.solve._white import whitening
from attnlearn.solve.refinement._config import RefineConfig, Refined
from attnlearn.solve.refinement._descent import Descent
from attnlearn.solve.refinement._schedule import Schedule
from attnlearn.solve.refinement._trace import Trace

DEFAULTS = RefineConfig()


def refine(
    start: AttentionLayer,
    x: ArrayLike,
    y: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    rank: int | None = None,
    config: RefineConfig = DEFAULTS,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> Refined:
    """Least squares on all parameters from `start`, to rounding or to the noise floor.

    `rank` is the largest that a Theta_i may have; when all turn out to have less, less is used. The W and b of
    `start` do not matter. Scores of any kind are refined, with the mask of `start`; positions are 0 .. k-1. `on_step` sees the evidence of every outer step as it happens.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((40, 5, 4))
    >>> refined = refine(layer.replace(theta=1.1 * layer.theta), x, layer(x))
    >>> refined.stop, bool(np.abs(refined.layer.theta - layer.theta).max() < 1e-10)
    ('floor', True)
    """
    x, y, keep = checked_examples(x, y, mask, start.dim)
    x, y, _ = promoted(x, y, start.w)
    dtype = x.dtype
    require(y.shape[2] == start.out_dim, "y", f"must have {start.out_dim} outputs, as start has", y)
    require(rank is None or rank >= 1, "rank", "must be at least 1", rank)
    white = whitening(x, keep)
    rounding = calibration.ROUNDING_EPS * float(np.finfo(dtype).eps)
    scores = white.inside(start.form.astype(np.float64)).of_rank(rank, rounding)
    descent = Descent(start.visible, config, Trace(on_step))
    schedule = Schedule(white, x, y, keep, descent)
    with on_threads():
        if config.combine_first:
            scores = schedule.combine_first(scores)
        found = schedule.descend(scores)
        w, b = split_linear(np.asarray(found.fit.linear, np.float64), start.num_heads)
        scores = found.scores.astype(np.float64)
    form, w = white.outside(scores.canonical()), white.inverse.T @ w
    b = b - white.mean @ w.sum(axis=0)
    layer = AttentionLayer.from_scores(
        form.astype(dtype), w.astype(dtype), b.astype(dtype), causal=start.visible
    )
    used = schedule.order[: schedule.used]
    return Refined(layer, found.residual, found.stop, len(used), scores.rank, descent.trace.steps, used)
