"""The features of linear attention: the distinct monomials x_a[u] G_a[p, q], p <= q, in coordinates in which tokens are white.

F_a[o] = sum over u, p <= q of c[u, pq, o] x_a[u] G_a[p, q]: linear in c. With biases x_a has a further entry 1, and there is one
more feature, the constant 1. Tokens are multiplied by T = M^(-1/2), M their second moment: a function in the class stays in it
(Theta = T Theta' T^T, c = T c', W = T W'), and the monomials are far better conditioned. Every feature is divided by its root mean
square. Cost: d^2 (d+1) / 2 numbers a row. What can fail: tokens that span fewer than d directions have fewer coordinates; the
answer is then one of many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from attnlearn.recovery.linear import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._white import Whitening, cut_short, support_tolerance


class Rows(NamedTuple):
    """Features (rows, P) and outputs (rows, o) of some sequences, and the sequence to which each row belongs."""

    features: np.ndarray
    outputs: np.ndarray
    sequence: np.ndarray


@dataclass(frozen=True)
class Coordinates:
    """White coordinates of the tokens, which class of layers is meant, and the size of each feature.

    `whiten` is T (d, r). `scale` holds the root mean square of every feature where it was fixed.
    """

    whiten: np.ndarray
    causal: bool
    biases: bool
    scale: np.ndarray

    @classmethod
    def fixed_on(cls, side: Batch, causal: bool, biases: bool) -> Coordinates:
        """Coordinates from the second moments of these tokens and features."""
        x = side.x.astype(np.float64)
        tokens = x.reshape(-1, x.shape[2]) if side.mask is None else x[side.mask]
        size = float(np.abs(tokens).max(initial=0.0)) or 1.0
        second = (tokens / size).T @ (tokens / size) / len(tokens)
        tolerance = support_tolerance(side.x.dtype, cut_short(tokens))
        whiten = Whitening.of(np.zeros(x.shape[2]), second, tolerance).inverse.T / size
        plain = cls(whiten, causal, biases, np.ones(1))
        squares, rows = np.zeros(plain.number), 0
        for part in plain.rows(side):
            squares += np.sum(part.features**2, axis=0)
            rows += len(part.features)
        scale = np.sqrt(squares / max(rows, 1))
        return replace(plain, scale=np.where(scale > 0, scale, 1.0))

    @property
    def rank(self) -> int:
        """Directions in which the tokens vary."""
        return self.whiten.shape[1]

    @property
    def queries(self) -> int:
        """Entries of a query: the coordinates, and 1 with biases."""
        return self.rank + self.biases

    @property
    def number(self) -> int:
        """Number of features."""
        return self.queries * self.rank * (self.rank + 1) // 2 + self.biases

    def rows(self, side: Batch) -> Iterator[Rows]:
        """Features and outputs of every real row, some sequences at a time."""
        k = side.x.shape[1]
        size = max(1, calibration.CHUNK_BYTES // (8 * max(1, self.number) * k))
        for start in range(0, side.num, size):
            at = slice(start, start + size)
            real = np.ones(side.x[at].shape[:2], bool) if side.mask is None else side.mask[at]
            z = (side.x[at].astype(np.float64) @ self.whiten) * real[..., None]
            features = self._features(z)[real]
            sequence = np.broadcast_to(np.arange(start, start + len(z))[:, None], real.shape)[real]
            yield Rows(features / self.scale, side.y[at].astype(np.float64)[real], sequence)

    def _features(self, z: np.ndarray) -> np.ndarray:
        """Features (n, k, P) of white tokens, padded ones being zero."""
        n, k, r = z.shape
        p, q = np.triu_indices(r)
        pairs = z[..., p] * z[..., q]
        gram = np.cumsum(pairs, axis=1) if self.causal else pairs.sum(axis=1, keepdims=True)
        query = np.concatenate([z, np.ones((n, k, 1))], axis=2) if self.biases else z
        monomials = (query[..., :, None] * gram[..., None, :]).reshape(n, k, -1)
        return np.concatenate([monomials, np.ones((n, k, 1))], axis=2) if self.biases else monomials
