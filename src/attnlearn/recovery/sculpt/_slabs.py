"""Phase 2: the slab that a row cuts in which two tokens explain the output, so that all heads agree.

If y = (lambda x_b + (1 - lambda) x_b') S up to a residual, then for every head
    |x_a^T Theta_i (x_b - x_b') - logit(lambda)| <= eps = -log(1 - u/lambda) - log(1 - u/(1 - lambda)),
u = rho/sigma, rho = residual + error of the sum on this row, sigma the smallest singular value of the m (k - 1)
vectors (x_t - x_t0) W_i (proved in docs/mathematics.md, section 2). The W_i are not known yet: u = 4 rho /
‖(x_b - x_b') S‖ stands in for it, and every slab is checked again with the true sigma at the end (`_recheck`).
A row counts only inside the *window*: lambda and 1 - lambda are several tolerances, no two visible tokens are equal,
and the second-best pair is clearly worse. Without it most slabs are false.

Cost: `explain_pairs` on the rows. What can fail: too few rows inside the window (the caller reads on, or stops).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._config import SculptConfig
from attnlearn.recovery.sculpt._rows import Rows, explain_pairs
from attnlearn.recovery.sculpt._state import State


class Slabs(NamedTuple):
    """|normal . theta - offset| <= width for theta = vec [Theta; c^T], one per certified row.

    `row` indexes the rows that were looked at; `first`, `second` and `weight` are the pair and its lambda.
    """

    normals: Float[np.ndarray, "n p"]
    offsets: Float[np.ndarray, "n"]
    widths: Float[np.ndarray, "n"]
    row: Int[np.ndarray, "n"]
    first: Int[np.ndarray, "n"]
    second: Int[np.ndarray, "n"]
    weight: Float[np.ndarray, "n"]
    residual: Float[np.ndarray, "n"]

    def take(self, chosen: np.ndarray) -> Slabs:
        """The slabs at `chosen`."""
        return Slabs(*(array[chosen] for array in self))


def slab_width(u: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """eps = -log(1 - u/lambda) - log(1 - u/(1 - lambda)); infinite where u >= min(lambda, 1 - lambda).

    >>> slab_width(np.array([0.0, 0.1, 0.6]), np.array([0.5, 0.5, 0.5])).round(4).tolist()
    [0.0, 0.4463, inf]
    """
    least = np.minimum(weight, 1 - weight)
    inside = u < least
    safe = np.where(inside, u, 0.0)
    least_allowed = np.finfo(float).tiny
    width = -np.log1p(-safe / np.maximum(weight, least_allowed))
    width = width - np.log1p(-safe / np.maximum(1 - weight, least_allowed))
    return np.where(inside, width, np.inf)


def slabs_of(state: State, rows: Rows, tolerance: float, config: SculptConfig) -> Slabs:
    """The slabs of the rows that lie in the window at this tolerance."""
    pairs = explain_pairs(state.sum, rows)
    each = np.arange(len(rows.query))
    features = rows.features()
    one, two = features[each, pairs.first], features[each, pairs.second]
    size = np.linalg.norm(rows.outputs - state.sum[-1], axis=1)
    relative = pairs.residual / np.maximum(size, np.finfo(float).tiny)
    least = np.minimum(pairs.weight, 1 - pairs.weight)
    mixed = pairs.weight[:, None] * one + (1 - pairs.weight)[:, None] * two
    rho = pairs.residual + sum_error(state, mixed, size)
    apart = np.linalg.norm((one - two) @ state.sum, axis=1)
    u = calibration.PROVISIONAL * rho / np.maximum(apart, np.finfo(float).tiny)
    width = slab_width(u, pairs.weight)
    inside = (relative <= tolerance) & (least >= config.window * relative) & (width <= calibration.WIDEST)
    inside &= pairs.rival > config.rivalry * pairs.residual
    kept = np.flatnonzero(inside)
    kept = kept[distinct(rows.take(kept))]
    normals = outer(rows.queries()[kept], (one - two)[kept, :-1])
    new = _first_of_each(normals, width[kept])
    kept, normals = kept[new], normals[new]
    lam = pairs.weight[kept]
    offsets = np.log(lam) - np.log1p(-lam)
    residual = pairs.residual[kept]
    return Slabs(normals, offsets, width[kept], kept, pairs.first[kept], pairs.second[kept], lam, residual)


def _first_of_each(normals: Float[np.ndarray, "n p"], widths: Float[np.ndarray, "n"]) -> Int[np.ndarray, "u"]:
    """The narrowest slab of every normal: few and discrete tokens give the same row again and again."""
    mark = normals @ np.random.default_rng(0).standard_normal(normals.shape[1])
    order = np.argsort(widths, kind="stable")
    _, first = np.unique(np.abs(mark[order]).round(9), return_index=True)
    return np.sort(order[first])


def outer(queries: Float[np.ndarray, "n f"], apart: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n p"]:
    """vec of query apart^T for every row: the normal of x_a^T Theta (x_b - x_b') in Theta."""
    size = queries.shape[1] * apart.shape[1]
    return (queries[:, :, None] * apart[:, None, :]).reshape(len(queries), size)


def sum_error(state: State, token: Float[np.ndarray, "n e1"], size: Float[np.ndarray, "n"]) -> np.ndarray:
    """What the error of the sum may do to the output of `token`: the halves' disagreement, and the bias that rows
    of the last scale leave."""
    return np.linalg.norm(token @ state.sum_spread, axis=1) + calibration.SUM_BIAS * state.sum_scale * size


def distinct(rows: Rows) -> np.ndarray:
    """Rows in which no two visible tokens are equal."""
    first, second = np.triu_indices(rows.tokens.shape[1], 1)
    gap = np.abs(rows.tokens[:, first] - rows.tokens[:, second]).max(axis=2)
    scale = np.abs(rows.tokens).max(initial=1.0)
    equal = (gap <= calibration.EQUAL_TOKENS * scale) & rows.keys[:, first] & rows.keys[:, second]
    return ~equal.any(axis=1)
