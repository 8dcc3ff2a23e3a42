"""Variable projection for factored layers: the squared error at the best O and b, and its gradient in all other factors.

    F = P [O; b],   P = [alpha_1 X V_1, ..., alpha_m X V_m, 1],   alpha_i = softmax((X, 1) Q_i K_i^T X^T)

Queries and keys meet as a member of `scores` says, so positions, norms, caps and sinks are no matter of this file; where heads have sinks, P has
one more column for each, the attention that its sink takes.

P has one column for each coordinate of each head's value, so W is fitted with its rank limited from the first step on. At the best O
and b the gradient of the error in Q, K and V is the partial one (O and b do not move it to first order), so it costs one backward pass.

Cost of one evaluation: O(rows (d (3 m r) + m r (k + o))), a few passes of the layer itself. What can fail: scores that
overflow at a trial point give a cost that is not finite, which the line search refuses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn._attention import row_sums, weigh
from attnlearn.compression import _calibration as calibration
from attnlearn.compression._factored import Factored
from attnlearn.scores import Bilinear, Held, Visible
from attnlearn.scores._products import pair, project, project_back
from attnlearn.solve._calibration import RIDGE, in_precision
from attnlearn.solve._chunks import Chunk, Chunks, Pieces, cache_bytes
from attnlearn.solve._regress import inverse_factor

PLAIN = Bilinear(None, None, np.zeros((0, 0)))
"""Queries and keys that meet in their inner products."""


class Local(NamedTuple):
    """What one chunk keeps for the way back: what met, values (n, k, heads, r), patterns (n, k, m, k) and P."""

    met: Any
    values: np.ndarray
    alpha: np.ndarray
    columns: np.ndarray


class Value(NamedTuple):
    """The squared error over the squares of the outputs about their mean, its gradient, and [O; b] (m r + 1, o)."""

    cost: float
    gradient: Factored
    linear: np.ndarray


class Projection:
    """The error of factored layers on some examples in white coordinates; `form` says how queries and keys meet.

    With `bias` False there is no b, and P has no column of ones.
    """

    def __init__(
        self, chunks: Chunks, causal: bool | Visible, total: float, form: Held = PLAIN, bias: bool = True
    ) -> None:
        self.chunks, self.causal, self.total = chunks, causal, total
        self.form, self.bias = form.astype(chunks.dtype) if form is not PLAIN else form, bias

    def __call__(self, at: Factored) -> Value:
        """The value at these factors, in the precision of the examples."""
        opened = at.opened().astype(self.chunks.dtype)
        local = self._local(opened)
        linear = self._solved(local)[0].astype(self.chunks.dtype)
        cost, *gradient = local.sum(_backward, self.chunks, given=(opened, linear, self.form))
        found = Factored(*(2 / self.total * np.asarray(part, np.float64) for part in gradient))
        return Value(cost / self.total, at.closed(found), linear)

    def linear(self, at: Factored) -> np.ndarray:
        """The best [O; b] in float64, corrected with true residuals."""
        local = self._local(at.opened().astype(self.chunks.dtype))
        linear, factor = self._solved(local)
        for _ in range(calibration.CORRECTIONS):
            linear = linear - factor.T @ (factor @ local.sum(_removable, self.chunks, given=(linear,)))
        return linear

    def _local(self, opened: Factored) -> Pieces:
        """What every chunk keeps, or computes again where that takes too much memory."""
        m, _, r = opened.query.shape
        numbers = self.chunks.rows * m * (self.chunks[0].x.shape[1] + 4 * r)
        keep = numbers * self.chunks.dtype.itemsize <= cache_bytes()
        work = self.chunks.multiplications(m * r + 1)
        return self.chunks.derive(
            _forward, given=(opened, self.causal, self.form, self.bias), keep=keep, work=work
        )

    def _solved(self, local: Pieces) -> tuple[np.ndarray, np.ndarray]:
        """[O; b] from the normal equations, and L^-1 of P^T P."""
        matrix, moment = local.sum(_normal, self.chunks)
        factor = inverse_factor(matrix, in_precision(RIDGE, self.chunks.dtype))
        return factor.T @ (factor @ moment), factor


def _normal(local: Local, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """P^T P and P^T Y of one chunk."""
    p = local.columns
    return (p.T @ p).astype(np.float64), (p.T @ chunk.y.reshape(len(p), -1)).astype(np.float64)


def _removable(local: Local, chunk: Chunk, linear: np.ndarray) -> np.ndarray:
    """P^T (P [O; b] - Y) of one chunk, in float64."""
    p = local.columns.astype(np.float64)
    return p.T @ (p @ linear - chunk.y.reshape(len(p), -1))


def _forward(chunk: Chunk, at: Factored, causal: bool, form: Held, bias: bool) -> Local:
    """Patterns and the columns P of one chunk."""
    x, share = chunk.x, at.share
    queries = _affine(x, form.ordered(at.query))
    keys = np.repeat(_affine(x, form.ordered(at.key)), share, axis=2)
    values = np.repeat(project(x, at.value), share, axis=2)
    logits, met = form.meet(queries, keys)
    alpha = weigh(logits, chunk.keep, causal)
    mixed = np.empty(values.shape, x.dtype)
    np.matmul(alpha.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3), out=mixed.transpose(0, 2, 1, 3))
    rows = mixed.reshape(alpha.shape[0] * alpha.shape[1], -1)
    ones = np.ones((len(rows), 1), x.dtype) if chunk.keep is None else chunk.keep.reshape(-1, 1)
    sinks = [] if form.sink_value is None else [ones - row_sums(alpha).reshape(len(rows), -1)]
    return Local(met, values, alpha, np.concatenate([rows, *sinks, *([ones] if bias else [])], axis=1))


def _affine(x: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """x (n, k, d) times every factor (d or d + 1, r); a last row beyond d is added."""
    found, d = project(x, factor[:, : x.shape[2]]), x.shape[2]
    if factor.shape[1] > d:
        found += factor[:, d]
    return found


def _backward(
    local: Local, chunk: Chunk, at: Factored, linear: np.ndarray, form: Held
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """The squared error of one chunk, and half its gradient in query, key and value."""
    rest = local.columns @ linear
    rest -= chunk.y.reshape(len(rest), -1)
    used = local.values[0, 0].size  # columns of values; those of sinks follow
    change = (rest @ linear[:used].T).reshape(local.values.shape)
    by_head = local.alpha.transpose(0, 2, 1, 3)
    weights = pair(change, local.values)
    if (
        form.sink_value is not None
    ):  # what a token takes from the sink counts relative to what the sink puts out
        sinks = linear[used : used + weights.shape[2]]
        weights -= (rest @ sinks.T).reshape(*weights.shape[:3], 1)
    weights *= local.alpha
    weights -= local.alpha * row_sums(weights)
    if form.sink_value is not None:
        weights = np.concatenate([weights, np.zeros((*weights.shape[:3], 1), weights.dtype)], axis=-1)
    values = np.empty_like(local.values)
    queries, keys = form.part(weights, local.met)
    np.matmul(by_head.swapaxes(2, 3), change.transpose(0, 2, 1, 3), out=values.transpose(0, 2, 1, 3))
    query = form.reordered(_pulled(chunk.x, queries, at.query))
    key = form.reordered(_pulled(chunk.x, _together(keys, at.share), at.key))
    value = project_back(chunk.x, _together(values, at.share))
    return float(np.vdot(rest, rest)), query, key, value


def _pulled(x: np.ndarray, change: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """The adjoint of `_affine` for a factor of that shape."""
    found = project_back(x, change)
    if factor.shape[1] == x.shape[2]:
        return found
    m, r = change.shape[2:]
    return np.concatenate([found, change.reshape(-1, m, 1, r).sum(axis=0)], axis=1)


def _together(parts: np.ndarray, share: int) -> np.ndarray:
    """Sums over the heads that share a key or a value (n, k, m / share, r)."""
    n, k, m, r = parts.shape
    return parts if share == 1 else parts.reshape(n, k, m // share, share, r).sum(axis=3)
