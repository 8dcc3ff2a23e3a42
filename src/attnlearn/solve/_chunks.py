"""Examples cut into equal chunks, and tokens made white: the ground on which the solvers stand.

Everything here sums over chunks of about `CHUNK_ROWS` query rows inside one `lax.scan`, so the working memory
does not grow with the number of examples. Padded tokens and the filling of the last chunk have `keep` = 0: as
keys they get no weight, as queries their rows are zero.

Whitening (section 3 of *The mathematics of attnlearn*): x = mu + B z with white z makes badly conditioned or
shifted tokens look like standard ones. Tokens that lie in an affine subspace get fewer coordinates, and the
layer that comes back is the canonical one on that subspace.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnlearn._forward import Parameters
from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.solve._calibration import CHUNK_ROWS, TOKEN_RANK


class Chunks(NamedTuple):
    """Chunked examples: x (C, s, k, d), y (C, s, k, o), keep (C, s, k) with 1 for real tokens and 0 for others."""

    x: Any
    y: Any
    keep: Any

    def astype(self, dtype: Any) -> Chunks:
        """The same chunks in another precision, as JAX arrays."""
        return Chunks(*(jnp.asarray(np.asarray(array).astype(dtype)) for array in self))


def stack_chunks(x: Tokens, y: Outputs, mask: Mask | None) -> Chunks:
    """Cut examples into equal chunks; the last one is filled with sequences of padding."""
    n, k, _ = x.shape
    # As few as the limit allows, but two: XLA's CPU backend returns garbage from conjugate gradients over a scan of one.
    number = max(2, -(-n // max(1, CHUNK_ROWS // k)))
    size = -(-n // number)
    keep = np.ones((n, k), x.dtype) if mask is None else mask.astype(x.dtype)
    if mask is not None:
        x, y = x * keep[..., None], y * keep[..., None]

    def stack(array: np.ndarray) -> np.ndarray:
        missing = number * size - n
        if missing:
            array = np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
        return array.reshape(-1, size, *array.shape[1:])

    return Chunks(stack(x), stack(y), stack(keep))


class Whitening(NamedTuple):
    """x = mean + basis z with white z; `inverse` is the pseudo-inverse of `basis`, z = inverse (x - mean)."""

    mean: Float[np.ndarray, "d"]
    basis: Float[np.ndarray, "d e"]
    inverse: Float[np.ndarray, "e d"]

    def tokens(self, x: Tokens) -> Tokens:
        """White coordinates of tokens."""
        return (x - self.mean.astype(x.dtype)) @ self.inverse.T.astype(x.dtype)

    def enter(self, params: Parameters) -> Parameters:
        """The layer as it acts on white coordinates."""
        theta, w, c, b = (np.asarray(array, np.float64) for array in params)
        return Parameters(
            self.basis.T @ theta @ self.basis,
            self.basis.T @ w,
            (c + self.mean @ theta) @ self.basis,
            b + self.mean @ w.sum(axis=0),
        )

    def leave(self, params: Parameters) -> Parameters:
        """The layer as it acts on the tokens themselves."""
        theta, w, c, b = (np.asarray(array, np.float64) for array in params)
        theta, w = self.inverse.T @ theta @ self.inverse, self.inverse.T @ w
        return Parameters(theta, w, c @ self.inverse - self.mean @ theta, b - self.mean @ w.sum(axis=0))


def whitening(x: Tokens, mask: Mask | None) -> Whitening:
    """Mean and covariance of the real tokens, in float64, turned into white coordinates."""
    rows = x.reshape(-1, x.shape[-1]) if mask is None else x[mask]
    mean = rows.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((x.shape[-1],) * 2)
    for start in range(0, len(rows), 64 * CHUNK_ROWS):
        block = rows[start : start + 64 * CHUNK_ROWS] - mean
        covariance += block.T @ block
    values, vectors = np.linalg.eigh(covariance / max(len(rows), 1))
    seen = values > TOKEN_RANK[x.dtype.name] * max(values[-1], np.finfo(np.float64).tiny)
    root, vectors = np.sqrt(values[seen]), vectors[:, seen]
    # The symmetric root leaves tokens that are white already (nearly) as they are.
    if seen.all():
        return Whitening(mean, (vectors * root) @ vectors.T, (vectors / root) @ vectors.T)
    return Whitening(mean, vectors * root, (vectors / root).T)
