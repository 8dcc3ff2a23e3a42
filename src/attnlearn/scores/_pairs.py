"""Complex pairs on extended tokens: their phases, and a preconditioner that keeps the gauge of a pair a complex number.

Over the offsets the phase exp(i w D) of a pair averages out, so both of its coordinates have one curvature, the mean of theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn.scores._kronecker import Kronecker, kronecker
from attnlearn.scores._protocol import Affine


def phases(columns: np.ndarray) -> np.ndarray:
    """Unit numbers (m, 1, columns) that make the largest entry of each column real and positive; 1 for a column of zeros."""
    place = np.argmax(np.abs(columns), axis=1, keepdims=True)
    largest = np.take_along_axis(columns, place, axis=1)
    size = np.abs(largest)
    return np.divide(largest.conj(), size, out=np.ones_like(largest), where=size > 0)


def balanced(a: np.ndarray, b: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors in one gauge: both sides of a pair of equal norm, the largest entry of b_j real and positive.

    Coordinates at rest become the balanced singular vectors of their product, with the same rule for signs.
    """
    dtype, still = a.dtype, a.shape[-1] - 2 * p
    a, b = (np.asarray(factor, np.float64) for factor in (a, b))
    left, right = (factor[..., :p] + 1j * factor[..., p : 2 * p] for factor in (a, b))
    sizes = [np.linalg.norm(part, axis=1, keepdims=True) for part in (left, right)]
    ratio = np.sqrt(np.divide(sizes[1], sizes[0], out=np.zeros_like(sizes[0]), where=sizes[0] > 0))
    back = np.divide(1, ratio, out=np.zeros_like(ratio), where=ratio > 0)
    phase = phases(right)
    left, right = left * ratio * phase, right * back * phase
    u, s, vt = np.linalg.svd(a[..., 2 * p :] @ np.swapaxes(b[..., 2 * p :], 1, 2), full_matrices=False)
    root = np.sqrt(s[:, None, :still])
    u, v = u[..., :still] * root, np.swapaxes(vt, 1, 2)[..., :still] * root
    sign = np.real(phases(v))

    def joined(pairs: np.ndarray, rest: np.ndarray) -> np.ndarray:
        return np.concatenate([np.real(pairs), np.imag(pairs), rest * sign], axis=-1).astype(dtype)

    return joined(left, u), joined(right, v)


class Extended:
    """Coordinates of tokens extended by a 1."""

    def __init__(self, white: Affine) -> None:
        d, e = white.basis.shape
        self.mean = np.zeros(d + 1)
        self.basis = np.eye(d + 1, e + 1)
        self.basis[:d, :e], self.basis[:d, e], self.basis[d, e] = white.basis, white.mean, 1
        self.inverse = np.eye(e + 1, d + 1)
        self.inverse[:e, :d], self.inverse[:e, d], self.inverse[e, d] = (
            white.inverse,
            -white.inverse @ white.mean,
            1,
        )


def structured(
    a: np.ndarray,
    b: np.ndarray,
    p: int,
    coupling: np.ndarray,
    second: np.ndarray,
    invert: Callable[[np.ndarray], np.ndarray],
) -> Kronecker:
    """The Kronecker factors of `kronecker` with one number for both coordinates of a pair, and the others apart.

    The constant of extended keys has no part in the coupling; it gets the mean curvature of its head.
    """
    m, d, width = a.shape[0], a.shape[1] - 1, a.shape[2]
    wide = np.zeros((m, d + 1, m, d + 1))
    wide[:, :d, :, :d] = coupling.reshape(m, d, m, d)
    own = np.einsum("ipip->i", wide) / d
    wide[np.arange(m), d, np.arange(m), d] = np.maximum(own, np.finfo(np.float64).tiny)
    tokens = np.eye(d + 1)
    tokens[:d, :d] = second
    a, b = (np.asarray(part, np.float64) for part in (a, b))
    side = [_per_pair(b[i].T @ wide[i, :, i] @ b[i], p) for i in range(m)]
    right = np.zeros((m, width, m, width))
    for i in range(m):
        right[i, :, i] = _ridged(side[i])
    found = kronecker(a, b, wide.reshape(m * (d + 1), -1), tokens, invert, joint=False)
    keys = np.stack([invert(_apart(a[i].T @ tokens @ a[i], p)) for i in range(m)])
    a_right = invert(right.reshape(m * width, m * width))
    return found._replace(a_right=a_right.astype(np.float32), b_right=keys.astype(np.float32))


def _ridged(matrix: np.ndarray) -> np.ndarray:
    """A matrix whose zero columns, of coordinates that a head does not use, have the mean curvature of the others."""
    diagonal = np.diagonal(matrix)
    mean = max(float(diagonal.mean()), float(np.finfo(np.float64).tiny))
    return matrix + np.diag(np.where(diagonal > 0, 0, mean))


def _per_pair(matrix: np.ndarray, p: int) -> np.ndarray:
    """(width, width) with one number for both coordinates of a pair; the coordinates at rest keep their block."""
    diagonal = np.diagonal(matrix)[: 2 * p].reshape(2, p).mean(axis=0)
    found = np.diag(np.concatenate([diagonal, diagonal, np.zeros(len(matrix) - 2 * p)]))
    found[2 * p :, 2 * p :] = matrix[2 * p :, 2 * p :]
    return found


def _apart(matrix: np.ndarray, p: int) -> np.ndarray:
    """A symmetric (width, width) without what couples rotated coordinates and coordinates at rest."""
    found = matrix.copy()
    found[: 2 * p, 2 * p :] = 0
    found[2 * p :, : 2 * p] = 0
    return _ridged(found)
