"""Tokens made white, layers in white coordinates and back, and the directions in which tokens vary.

x = mu + B z with white z makes badly conditioned or shifted tokens look like standard ones. Tokens that lie in an
affine subspace get fewer coordinates, and the layer that comes back is the canonical one on that subspace.
Cost: one pass over the tokens, O(rows d^2). What can fail: directions whose variance is below `SUPPORT_TOLERANCE` of the largest count
as none, whatever they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._canonical import Support, on_support
from attnlearn._layer import AttentionLayer
from attnlearn._types import Mask, Tokens
from attnlearn.engine import storable
from attnlearn.scores import Bilinear, Scores
from attnlearn.solve._calibration import CHUNK_ROWS, PIECE, SUPPORT_TOLERANCE


@storable
@dataclass(frozen=True)
class Whitening:
    """x = mean + basis z with white z; `inverse` is the pseudo-inverse of `basis`, z = inverse (x - mean)."""

    mean: Float[np.ndarray, "d"]
    basis: Float[np.ndarray, "d e"]
    inverse: Float[np.ndarray, "e d"]

    @classmethod
    def of(
        cls, mean: Float[np.ndarray, "d"], covariance: Float[np.ndarray, "d d"], tolerance: float
    ) -> Whitening:
        """White coordinates of tokens with this mean and covariance, in the directions above `tolerance` of the largest variance.

        The basis is the symmetric root when every direction varies: it leaves white tokens (nearly) as they are and keeps the axes
        of ±1 tokens. Otherwise it is the scaled eigenvectors of the support, the largest first.
        """
        values, vectors = np.linalg.eigh(covariance)
        seen = np.flatnonzero(values > tolerance * max(values[-1], np.finfo(np.float64).tiny))[::-1]
        root, vectors = np.sqrt(values[seen]), vectors[:, seen]
        turned = vectors.T if len(seen) == len(values) else np.eye(len(seen))
        return cls(mean, (vectors * root) @ turned, (turned.T / root) @ vectors.T)

    @property
    def directions(self) -> int:
        """Directions in which the tokens vary."""
        return self.basis.shape[1]

    @property
    def support(self) -> Support:
        """The affine span of the tokens."""
        return Support(self.mean, self.basis)

    def tokens(self, x: Float[np.ndarray, "*rows d"], dtype: Any = None) -> Float[np.ndarray, "*rows e"]:
        """White coordinates of tokens, computed in float64 and rounded to their precision, or computed in `dtype`.

        The mean is subtracted first. In float32 a direction of little variance would have no digit left.
        """
        work = np.float64 if dtype is None else dtype
        rows = (x - self.mean).astype(work, copy=False).reshape(-1, x.shape[-1]) @ self.inverse.T.astype(work)
        return rows.reshape(*x.shape[:-1], -1).astype(x.dtype if dtype is None else dtype, copy=False)

    def inside(self, scores: Scores) -> Scores:
        """Scores of the tokens as scores of white coordinates."""
        return scores.seen_through(self.mean, self.basis)

    def outside(self, scores: Scores) -> Scores:
        """Scores of white coordinates as scores of the tokens."""
        return scores.seen_through(-self.inverse @ self.mean, self.inverse)

    def enter(self, params: Parameters) -> Parameters:
        """The layer as it acts on white coordinates."""
        theta, c = (np.asarray(array, np.float64) for array in (params.theta, params.query_bias))
        scores = Bilinear.whole(theta, c).seen_through(self.mean, self.basis)
        w, b = self.enter_linear(params.w, params.output_bias)
        return Parameters(scores.a, w, scores.c, b)

    def enter_linear(self, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """W and b of the layer as it acts on white coordinates."""
        w, b = np.asarray(w, np.float64), np.asarray(b, np.float64)
        return self.basis.T @ w, b + self.mean @ w.sum(axis=0)

    def leave(self, params: Parameters) -> Parameters:
        """The layer as it acts on the tokens themselves."""
        theta, w, c, b = (np.asarray(array, np.float64) for array in params)
        scores = Bilinear.whole(theta, c).seen_through(-self.inverse @ self.mean, self.inverse)
        w = self.inverse.T @ w
        return Parameters(scores.a, w, scores.c, b - self.mean @ w.sum(axis=0))


def whitening(x: Tokens, mask: Mask | None, centred: bool = True) -> Whitening:
    """Mean and covariance of the real tokens, in float64, turned into white coordinates; uncentred, 0 and second moments in their place."""
    rows = x.reshape(-1, x.shape[-1]) if mask is None else x[mask]
    mean = rows.mean(axis=0, dtype=np.float64) if centred else np.zeros(x.shape[-1])
    covariance = np.zeros((x.shape[-1],) * 2)
    for start in range(0, len(rows), PIECE * CHUNK_ROWS):
        block = rows[start : start + PIECE * CHUNK_ROWS] - mean
        covariance += block.T @ block
    return Whitening.of(mean, covariance / max(len(rows), 1), support_tolerance(x.dtype, cut_short(rows)))


def cut_short(rows: Float[np.ndarray, "t d"]) -> bool:
    """Whether these are float32 numbers that were stored as bfloat16 once: their last 16 bits are zero.

    >>> cut_short(np.ones((1, 2), np.float32)), cut_short(np.full((1, 2), 0.1, np.float32)), cut_short(np.ones((1, 2)))
    (True, False, False)
    """
    return rows.dtype == np.float32 and not (np.ascontiguousarray(rows).view(np.uint32) & 0xFFFF).any()


def support_tolerance(dtype: np.dtype, short: bool) -> float:
    """Variance, relative to the largest, above which a direction exists for tokens of this precision, `short` if once bfloat16."""
    return SUPPORT_TOLERANCE["bfloat16" if short else np.dtype(dtype).name]


def reduce_to_support(
    layer: AttentionLayer, x: Tokens, support: Support | None
) -> tuple[AttentionLayer, Float[np.ndarray, "n k r"]]:
    """The layer and tokens in an orthonormal basis of the directions in which tokens vary."""
    if support is None:
        return layer, x
    basis = np.linalg.qr(np.asarray(support.basis, np.float64))[0].astype(layer.dtype)
    inside = on_support(layer, support)
    form = inside.form.seen_through(np.zeros(layer.dim, layer.dtype), basis)
    reduced = AttentionLayer.from_scores(form, basis.T @ inside.w, inside.output_bias, causal=layer.visible)
    return reduced, x @ basis
