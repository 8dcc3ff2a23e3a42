"""Drop: which heads a layer can do without, when the W of all others are fitted again.

Dropping head i and refitting every other W_j raises the least squares cost by exactly

    tr(W_i^T [(G^-1)_ii]^-1 W_i),        G = P^T P,  P = [alpha_1 X, ..., alpha_m X, 1]

so one Gram matrix has the costs of all drops, refit included, and its blocks those of what can be dropped after them.

Cost: the Gram matrix, O(rows (m d)^2), and a Cholesky factor for every head dropped. What can fail: redundant heads make G
singular; the ridge in its factor then finds each of them to cost about nothing, which is right.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.scores import Bilinear
from attnlearn.solve._attend import split_linear
from attnlearn.solve._batch import Batch
from attnlearn.solve._calibration import RIDGE, in_precision
from attnlearn.solve._chunks import cut, on_threads
from attnlearn.solve._regress import Columns, eliminate, inverse_factor, total_squares
from attnlearn.solve._white import Whitening, whitening


class WhitenedRegression:
    """Fit examples in white coordinates, and least squares for W and b on them."""

    def __init__(self, held: Batch, causal: bool) -> None:
        self.dtype, self.causal = held.x.dtype, causal
        self.white: Whitening = whitening(held.x, held.mask)
        self.chunks = cut(self.white.tokens(held.x), held.y, held.mask)
        self.total = max(total_squares(held.y, held.mask), np.finfo(np.float64).tiny)

    def enter(self, layer: AttentionLayer) -> Parameters:
        """The layer's parameters in white coordinates."""
        return self.white.enter(layer.parameters)

    def normal(self, inside: Parameters) -> tuple[np.ndarray, np.ndarray]:
        """G = P^T P and P^T Y for the scores of a layer in white coordinates."""
        with on_threads():
            scores = Bilinear.whole(inside.theta, inside.query_bias).astype(self.dtype)
            matrix, moment = Columns(scores, self.chunks, self.causal).gram()
        return np.asarray(matrix, np.float64), np.asarray(moment, np.float64)

    def refit(self, inside: Parameters) -> tuple[AttentionLayer, float]:
        """The layer with the best W and b for these scores, and its squared error relative to the outputs' spread."""
        with on_threads():
            scores = Bilinear.whole(inside.theta, inside.query_bias).astype(self.dtype)
            fit = eliminate(scores, self.chunks, self.causal)
            w, b = split_linear(np.asarray(fit.linear, np.float64), len(inside.theta))
        return self.leave(Parameters(inside.theta, w, inside.query_bias, b)), fit.cost / self.total

    def leave(self, inside: Parameters) -> AttentionLayer:
        """A layer from parameters in white coordinates."""
        found = self.white.leave(inside)
        return AttentionLayer(*(array.astype(self.dtype) for array in found), causal=self.causal)

    @property
    def ridge(self) -> float:
        """Relative rounding of a Gram matrix."""
        return in_precision(RIDGE, self.dtype)


def drop_costs(inside: Parameters, ground: WhitenedRegression) -> Float[np.ndarray, "m"]:
    """By how much the relative squared error grows when a head is dropped and the others refitted."""
    matrix, moment = ground.normal(inside)
    with on_threads():
        return _costs(matrix, moment, inside.theta.shape[1], ground)


def drop_order(
    inside: Parameters, ground: WhitenedRegression
) -> Iterator[tuple[Int[np.ndarray, "h"], float]]:
    """The heads that remain after each drop, the cheapest first, and the root of its cost, down to one head."""
    matrix, moment = ground.normal(inside)
    m, d = inside.theta.shape[:2]
    columns = np.arange(m * d).reshape(m, d)
    kept = np.arange(m)
    while len(kept) > 1:
        own = np.append(columns[kept].reshape(-1), m * d)
        with on_threads():
            costs = _costs(matrix[np.ix_(own, own)], moment[own], d, ground)
        least = int(np.argmin(costs))
        kept = np.delete(kept, least)
        yield kept, float(np.sqrt(max(costs[least], 0.0)))


def _costs(
    matrix: np.ndarray, moment: np.ndarray, d: int, ground: WhitenedRegression
) -> Float[np.ndarray, "m"]:
    factor = inverse_factor(matrix, ground.ridge)
    linear = factor.T @ (factor @ moment)
    costs = np.empty(len(matrix) // d)
    for head in range(len(costs)):
        block = slice(head * d, (head + 1) * d)
        own = factor[:, block].T @ factor[:, block]
        costs[head] = np.sum(linear[block] * np.linalg.solve(own, linear[block]))
    return costs / ground.total


def select(inside: Parameters, heads: np.ndarray) -> Parameters:
    """The parameters of some heads."""
    return Parameters(inside.theta[heads], inside.w[heads], inside.query_bias[heads], inside.output_bias)
