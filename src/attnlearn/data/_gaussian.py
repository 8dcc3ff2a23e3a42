"""Independent Gaussian tokens x = mu + B z with B B^T = Sigma; Sigma may be singular (an affine support).

Cost: one normal per value, and a d x d product per token unless Sigma is the identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._errors import require
from attnlearn._precision import require_finite, to_numpy
from attnlearn._types import ArrayLike
from attnlearn.data._base import BlockModel
from attnlearn.data._calibration import COVARIANCE_TOLERANCE


class Gaussian(BlockModel):
    """Sequences of `tokens` independent N(mean, covariance) vectors; by default standard normal.

    >>> Gaussian(tokens=3, dim=2, mean=np.array([5.0, 0.0])).sample(1000).mean(axis=(0, 1)).round().tolist()
    [5.0, 0.0]
    """

    _tag = 2

    def __init__(
        self,
        tokens: int,
        dim: int,
        mean: ArrayLike | None = None,
        covariance: ArrayLike | None = None,
        *,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(tokens, dim, dtype)
        self.mean = np.zeros(self.dim) if mean is None else _vector(mean, self.dim)
        self.covariance = np.eye(self.dim) if covariance is None else _symmetric(covariance, self.dim)
        self._shift = None if mean is None else self.mean
        self._root = None if covariance is None else _square_root(self.covariance)

    def _draw(self, rng: np.random.Generator, num: int) -> tuple[np.ndarray, ...]:
        x = rng.standard_normal((num, self.tokens, self.dim))
        if self._root is not None:
            # One product per sequence is too small for BLAS to wake its threads; with all cores busy one large
            # product waited for them (8 x 32 tokens: 2 against 84 million values a second).
            x = x @ self._root
        if self._shift is not None:
            x += self._shift
        return (x,)

    def __repr__(self) -> str:
        mean = "0" if self._shift is None else "given"
        covariance = "identity" if self._root is None else "given"
        return (
            f"Gaussian(tokens={self.tokens}, dim={self.dim}, mean={mean}, covariance={covariance}, "
            f"dtype={self.dtype})"
        )


def _vector(mean: ArrayLike, dim: int) -> Float[np.ndarray, "d"]:
    vector = to_numpy(mean, "mean").astype(np.float64)
    require(vector.shape == (dim,), "mean", f"must have shape ({dim},)", vector)
    require_finite(vector, "mean")
    return vector


def _symmetric(covariance: ArrayLike, dim: int) -> Float[np.ndarray, "d d"]:
    matrix = to_numpy(covariance, "covariance").astype(np.float64)
    require(matrix.shape == (dim, dim), "covariance", f"must have shape ({dim}, {dim})", matrix)
    require_finite(matrix, "covariance")
    asymmetry = float(np.abs(matrix - matrix.T).max())
    tolerance = COVARIANCE_TOLERANCE * float(np.abs(matrix).max())
    require(asymmetry <= tolerance, "covariance", "must be symmetric", f"asymmetry {asymmetry:.3g}")
    return (matrix + matrix.T) / 2


def _square_root(covariance: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """The symmetric square root: unlike a triangular factor it exists for singular matrices too."""
    values, vectors = np.linalg.eigh(covariance)
    lowest, tolerance = float(values[0]), COVARIANCE_TOLERANCE * float(np.abs(values).max())
    require(lowest >= -tolerance, "covariance", "must have no negative eigenvalue", lowest)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
