"""Drop: which heads a layer can do without, when the W of all others are fitted again.

Dropping head i and refitting every other W_j raises the least squares cost by exactly

    tr(W_i^T [(G^-1)_ii]^-1 W_i),        G = P^T P,  P = [alpha_1 X, ..., alpha_m X, 1]

so one Gram matrix has the costs of all drops, refit included, and its blocks those of what can be dropped after them.

Cost: the Gram matrix, O(rows (m d)^2), and a Cholesky factor for every head dropped. What can fail: redundant heads make G
singular; the ridge in its factor then finds each of them to cost about nothing, which is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.scores import Bilinear, Scores, Visible
from attnlearn.solve._attend import split_linear
from attnlearn.solve._batch import Batch
from attnlearn.solve._calibration import EQUATIONS_PER_UNKNOWN, LEAST_ROWS, RIDGE, in_precision
from attnlearn.solve._chunks import cut, on_threads
from attnlearn.solve._regress import Columns, eliminate, inverse_factor, total_squares
from attnlearn.solve._white import Whitening, whitening


class WhitenedRegression:
    """Fit examples in white coordinates, and least squares for W and b on them.

    Coordinates that are not centred keep layers without biases without them.
    """

    def __init__(self, held: Batch, causal: bool | Visible, centred: bool = True) -> None:
        self.dtype, self.causal = held.x.dtype, causal
        self.white: Whitening = whitening(held.x, held.mask, centred)
        self.chunks = cut(self.white.tokens(held.x), held.y, held.mask)
        self.total = max(total_squares(held.y, held.mask), np.finfo(np.float64).tiny)

    def enter(self, layer: AttentionLayer) -> Parameters:
        """The layer's parameters in white coordinates."""
        return self.white.enter(layer.parameters)

    def normal(self, inside: Scores) -> tuple[np.ndarray, np.ndarray]:
        """G = P^T P and P^T Y for the scores of a layer in white coordinates."""
        with on_threads():
            matrix, moment = Columns(inside.astype(self.dtype), self.chunks, self.causal).gram()
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
    scores = Bilinear.whole(inside.theta, inside.query_bias)
    normal = Normal(*ground.normal(scores), scores.dim, ground.ridge)
    with on_threads():
        return normal.costs() / ground.total


def drop_order(layer: AttentionLayer, held: Batch) -> Iterator[tuple[Int[np.ndarray, "h"], float]]:
    """The heads that remain after each drop, the cheapest first, and the root of its cost, down to one head.

    The regression takes as many of the examples as its unknowns ask for.
    """
    rows = EQUATIONS_PER_UNKNOWN * layer.num_heads * layer.dim
    some = held.first(max(LEAST_ROWS // 4, -(-rows // held.x.shape[1])))
    ground = WhitenedRegression(some, layer.visible)
    inside = ground.white.inside(layer.form.astype(np.float64))
    return cheapest_drops(Normal(*ground.normal(inside), inside.dim, ground.ridge), ground.total)


class Normal(NamedTuple):
    """The normal equations of a fit that is linear in blocks of `size` columns, one for each head, and in one last column.

    `matrix` is P^T P and `moment` P^T Y; `ridge` is the relative rounding of the matrix.
    """

    matrix: Float[np.ndarray, "p p"]
    moment: Float[np.ndarray, "p o"]
    size: int
    ridge: float

    @property
    def heads(self) -> int:
        """Number of blocks."""
        return len(self.matrix) // self.size

    def of(self, heads: Int[np.ndarray, "h"]) -> Normal:
        """The equations of some heads alone."""
        columns = np.arange(self.heads * self.size).reshape(self.heads, self.size)
        own = np.append(columns[heads].reshape(-1), self.heads * self.size)
        return self._replace(matrix=self.matrix[np.ix_(own, own)], moment=self.moment[own])

    def costs(self) -> Float[np.ndarray, "m"]:
        """By how much the squared error grows when a head is dropped and the others are refitted."""
        factor = inverse_factor(self.matrix, self.ridge)
        linear = factor.T @ (factor @ self.moment)
        costs = np.empty(self.heads)
        for head in range(self.heads):
            block = slice(head * self.size, (head + 1) * self.size)
            own = factor[:, block].T @ factor[:, block]
            costs[head] = np.sum(linear[block] * np.linalg.solve(own, linear[block]))
        return costs


def cheapest_drops(normal: Normal, total: float) -> Iterator[tuple[Int[np.ndarray, "h"], float]]:
    """The heads that remain after each drop, and the root of its cost relative to `total`, down to one head."""
    kept = np.arange(normal.heads)
    while len(kept) > 1:
        with on_threads():
            costs = normal.of(kept).costs() / total
        least = int(np.argmin(costs))
        kept = np.delete(kept, least)
        yield kept, float(np.sqrt(max(costs[least], 0.0)))


def select(inside: Parameters, heads: np.ndarray) -> Parameters:
    """The parameters of some heads."""
    return Parameters(inside.theta[heads], inside.w[heads], inside.query_bias[heads], inside.output_bias)
