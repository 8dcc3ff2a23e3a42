"""Complex pairs on extended tokens: their phases, and one gauge for both factors, and steps along changes of basis."""

from __future__ import annotations

import numpy as np
import scipy.linalg

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


def moved(a: np.ndarray, b: np.ndarray, da: np.ndarray, db: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors (d, width) of one head after a step, along the orbit of the part of it that is a change of basis.

    With da = a alpha + ..., db = b beta + ... and g = (alpha - beta^T) / 2: (a + da - a g) e^g and (b + db + b g^T) e^-g^T, which agrees with
    a + da and b + db to first order.
    """
    alpha = np.linalg.lstsq(a[:-1], da[:-1], rcond=None)[0]
    beta = np.linalg.lstsq(b[:-1], db[:-1], rcond=None)[0]
    g = (alpha - beta.T) / 2
    return (a + da - a @ g) @ scipy.linalg.expm(g), (b + db + b @ g.T) @ scipy.linalg.expm(-g).T
