"""Choose and merge: from h + 1 heads to a start with h, before anything is refined.

Dropping head i and refitting every other W_j raises the least squares cost by exactly

    tr(W_i^T [(G^-1)_ii]^-1 W_i),        G = P^T P,  P = [alpha_1 X, ..., alpha_m X, 1]

so one Gram matrix prices all drops, refit included. Merging heads i and j puts (t Theta_i + (1 - t) Theta_j) in their
place, t their share of the output; to first order in the scores that loses
e_i e_j/(e_i + e_j) ‖Theta_i - Theta_j‖^2, e_i = ‖W_i‖^2, all in white coordinates. The cheapest pair is tried, its price
with refitted W measured, and the cheaper of drop and merge is the start.

Cost: two Gram matrices, O(rows (m d)^2), and one Cholesky factor. What can fail: redundant heads make G singular; the
ridge in its factor then prices each of them at about nothing, which is right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.solve._calibration import RIDGE_DOUBLE, RIDGE_SINGLE
from attnlearn.solve._certify import Held
from attnlearn.solve._chunks import Whitening, cut, on_threads, whitening
from attnlearn.solve._regress import Columns, eliminate, inverse_factor, total_squares
from attnlearn.solve._scores import Scores, split_linear


class Ground:
    """Fit examples in white coordinates, and least squares for W and b on them."""

    def __init__(self, held: Held, causal: bool) -> None:
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
            scores = Scores(inside.theta, None, inside.query_bias).astype(self.dtype)
            matrix, moment = Columns(scores, self.chunks, self.causal).gram()
        return np.asarray(matrix, np.float64), np.asarray(moment, np.float64)

    def refit(self, inside: Parameters) -> tuple[AttentionLayer, float]:
        """The layer with the best W and b for these scores, and its squared error relative to the outputs' spread."""
        with on_threads():
            scores = Scores(inside.theta, None, inside.query_bias).astype(self.dtype)
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
        return RIDGE_SINGLE if self.dtype == np.float32 else RIDGE_DOUBLE


class Start(NamedTuple):
    """A layer with one head fewer, how it was made, and the relative errors that its rivals had on fit examples."""

    layer: AttentionLayer
    made_by: str
    errors: dict[str, float]


def one_fewer(layer: AttentionLayer, ground: Ground) -> Start:
    """The better of dropping one head and merging two, W and b refitted."""
    inside = ground.enter(layer)
    prices = drop_prices(inside, ground)
    least = int(np.argmin(prices))
    dropped, cost = ground.refit(_select(inside, np.delete(np.arange(layer.num_heads), least)))
    errors = {"dropped": float(np.sqrt(cost))}
    merged, merged_cost = ground.refit(_merged(inside, *cheapest_pair(inside)))
    errors["merged"] = float(np.sqrt(merged_cost))
    return Start(merged, "merge", errors) if merged_cost < cost else Start(dropped, "drop", errors)


def drop_prices(inside: Parameters, ground: Ground) -> Float[np.ndarray, "m"]:
    """By how much the relative squared error grows when a head is dropped and the others refitted."""
    matrix, moment = ground.normal(inside)
    m, d = len(inside.theta), inside.theta.shape[1]
    with on_threads():
        factor = inverse_factor(matrix, ground.ridge)
        linear = factor.T @ (factor @ moment)
        prices = np.empty(m)
        for head in range(m):
            block = slice(head * d, (head + 1) * d)
            own = factor[:, block].T @ factor[:, block]
            prices[head] = np.sum(linear[block] * np.linalg.solve(own, linear[block]))
    return prices / ground.total


def cheapest_pair(inside: Parameters) -> tuple[int, int]:
    """The two heads whose merging loses least to first order in the scores."""
    stacked = np.concatenate([inside.theta, inside.query_bias[:, None, :]], axis=1)
    energy = np.sum(np.square(inside.w), axis=(1, 2))
    m = len(stacked)
    pairs = [(i, j) for i in range(m) for j in range(i)]
    lost = [
        np.sum(np.square(stacked[i] - stacked[j]))
        * energy[i]
        * energy[j]
        / max(energy[i] + energy[j], np.finfo(float).tiny)
        for i, j in pairs
    ]
    return pairs[int(np.argmin(lost))]


def _merged(inside: Parameters, i: int, j: int) -> Parameters:
    energy = np.sum(np.square(inside.w), axis=(1, 2))
    share = energy[i] / max(energy[i] + energy[j], np.finfo(float).tiny)
    theta, c = inside.theta.copy(), inside.query_bias.copy()
    theta[j] = share * theta[i] + (1 - share) * theta[j]
    c[j] = share * c[i] + (1 - share) * c[j]
    kept = np.delete(np.arange(len(theta)), i)
    return _select(inside._replace(theta=theta, query_bias=c), kept)


def _select(inside: Parameters, heads: np.ndarray) -> Parameters:
    return Parameters(inside.theta[heads], inside.w[heads], inside.query_bias[heads], inside.output_bias)
