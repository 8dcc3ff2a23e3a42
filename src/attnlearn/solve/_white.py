"""Tokens made white, layers in white coordinates and back, and the directions in which tokens vary.

x = mu + B z with white z makes badly conditioned or shifted tokens look like standard ones. Tokens that lie in an
affine subspace get fewer coordinates, and the layer that comes back is the canonical one on that subspace.
Cost: one pass over the tokens, O(rows d^2). What can fail: directions whose variance is below `TOKEN_RANK` of the largest count
as none, whatever they mean.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._types import Mask, Tokens
from attnlearn.scores import Bilinear, Scores
from attnlearn.solve._calibration import CHUNK_ROWS, PIECE, TOKEN_RANK, in_precision


class Whitening(NamedTuple):
    """x = mean + basis z with white z; `inverse` is the pseudo-inverse of `basis`, z = inverse (x - mean)."""

    mean: Float[np.ndarray, "d"]
    basis: Float[np.ndarray, "d e"]
    inverse: Float[np.ndarray, "e d"]

    def tokens(self, x: Tokens) -> Tokens:
        """White coordinates of tokens."""
        return (x - self.mean.astype(x.dtype)) @ self.inverse.T.astype(x.dtype)

    def inside(self, scores: Scores) -> Scores:
        """Scores of the tokens as scores of white coordinates."""
        return scores.seen_through(self.mean, self.basis)

    def outside(self, scores: Scores) -> Scores:
        """Scores of white coordinates as scores of the tokens."""
        return scores.seen_through(-self.inverse @ self.mean, self.inverse)

    def enter(self, params: Parameters) -> Parameters:
        """The layer as it acts on white coordinates."""
        theta, w, c, b = (np.asarray(array, np.float64) for array in params)
        scores = Bilinear.whole(theta, c).seen_through(self.mean, self.basis)
        return Parameters(scores.a, self.basis.T @ w, scores.c, b + self.mean @ w.sum(axis=0))

    def leave(self, params: Parameters) -> Parameters:
        """The layer as it acts on the tokens themselves."""
        theta, w, c, b = (np.asarray(array, np.float64) for array in params)
        scores = Bilinear.whole(theta, c).seen_through(-self.inverse @ self.mean, self.inverse)
        w = self.inverse.T @ w
        return Parameters(scores.a, w, scores.c, b - self.mean @ w.sum(axis=0))


def whitening(x: Tokens, mask: Mask | None) -> Whitening:
    """Mean and covariance of the real tokens, in float64, turned into white coordinates."""
    rows = x.reshape(-1, x.shape[-1]) if mask is None else x[mask]
    mean = rows.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((x.shape[-1],) * 2)
    for start in range(0, len(rows), PIECE * CHUNK_ROWS):
        block = rows[start : start + PIECE * CHUNK_ROWS] - mean
        covariance += block.T @ block
    values, vectors = np.linalg.eigh(covariance / max(len(rows), 1))
    seen = values > in_precision(TOKEN_RANK, x.dtype) * max(values[-1], np.finfo(np.float64).tiny)
    root, vectors = np.sqrt(values[seen]), vectors[:, seen]
    # The symmetric root leaves tokens that are white already (nearly) as they are.
    if seen.all():
        return Whitening(mean, (vectors * root) @ vectors.T, (vectors / root) @ vectors.T)
    return Whitening(mean, vectors * root, (vectors / root).T)
