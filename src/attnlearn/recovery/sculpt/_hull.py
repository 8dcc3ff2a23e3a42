"""Phase 6: the affine hull of the heads, and how many there are.

Every certified row says a_j . Theta_i = t_j for all heads at once, up to eps_j. So the vectors (Theta_i, 1) are
approximate null vectors of the matrix with rows (a_j, -t_j)/eps_j: its smallest right singular vectors span them,
and the number of small singular values is 1 + dim of the affine hull, a lower bound on the number of heads. The
count is read off at a gap and cross-checked by the body's widths, which must be large along the hull and
small across it.

A few slabs are false: a slab that the hull misses by r half-widths gets the weight 1/max(1, r). True slabs are never
missed by much more than one, so they keep their weight; anchoring the weights there, and not at a quantile of r,
matters, because half of all slabs of ±1 tokens are blind to a given column of Theta. The distance between the hulls
of two halves of the slabs is the error indicator.

Cost: one eigenvalue problem of size p + 1 per reweighting. Wrong if heads are affinely dependent, a W_i is tiny,
or two Theta_i are closer than the slabs are wide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._slabs import Slabs


class Hull(NamedTuple):
    """base + span(directions), the base nearest to 0; singular values smallest first; weights of the slabs."""

    base: Float[np.ndarray, "p"]
    directions: Float[np.ndarray, "q p"]
    singular_values: Float[np.ndarray, "s"]
    weights: Float[np.ndarray, "n"]

    @property
    def gap(self) -> float:
        """Ratio of the first singular value that is not counted to the last one that is."""
        m = len(self.directions) + 1
        tiny = np.finfo(float).tiny
        return float(self.singular_values[m] / max(self.singular_values[m - 1], tiny))

    def distance(self, theta: Float[np.ndarray, "p"]) -> float:
        """Distance of a point from the hull."""
        rest = theta.reshape(-1) - self.base
        return float(np.linalg.norm(rest - self.directions.T @ (self.directions @ rest)))


def fit_hull(slabs: Slabs, num_heads: int) -> Hull:
    """The affine hull of `num_heads` points that the slabs agree on best.

    >>> rng = np.random.default_rng(0)
    >>> heads = rng.standard_normal((2, 5))
    >>> normals = rng.standard_normal((60, 5))
    >>> normals -= np.outer(normals @ (heads[0] - heads[1]), heads[0] - heads[1]) / np.sum((heads[0] - heads[1])**2)
    >>> ones = np.ones(60)
    >>> slabs = Slabs(normals, normals @ heads[0], 0.1 * ones, *(5 * (ones,)))
    >>> fit_hull(slabs, 2).distance(heads[1]) < 1e-6
    True
    """
    scale = np.sqrt(np.mean(slabs.offsets**2) / np.mean(slabs.normals**2))
    scale = max(float(scale), np.finfo(float).tiny)
    # (a, -t/scale) . (theta, scale) = a . theta - t: all columns have about the same size.
    matrix = np.concatenate([slabs.normals, -slabs.offsets[:, None] / scale], axis=1) / slabs.widths[:, None]
    weights, length = np.ones(len(matrix)), _length(matrix, scale)
    for _ in range(calibration.HULL_REPEATS):
        values, vectors = np.linalg.eigh((matrix * weights[:, None] ** 2).T @ matrix)
        null = vectors[:, :num_heads]
        hull = _affine(null, scale, values, weights)
        excess = np.linalg.norm(matrix @ null, axis=1) * length / calibration.HULL_TRUSTED
        weights = 1 / np.maximum(1, excess)
    singular = np.sqrt(np.maximum(values, 0) / max(np.sum(weights**2), np.finfo(float).tiny))
    return hull._replace(singular_values=singular, weights=weights)


def _length(matrix: Float[np.ndarray, "n s"], scale: float) -> float:
    """Norm of (theta, scale) for the smallest theta that fits the slabs: turns a null vector's miss into half-widths."""
    gram = matrix.T @ matrix
    inner, right = gram[:-1, :-1], -gram[:-1, -1] * scale
    ridge = calibration.CENTRE_RIDGE * np.trace(inner) / len(inner) * np.eye(len(inner))
    return float(np.hypot(np.linalg.norm(np.linalg.solve(inner + ridge, right)), scale))


def _affine(null: np.ndarray, scale: float, singular: np.ndarray, weights: np.ndarray) -> Hull:
    """From null vectors (theta, scale) to the base and the directions of the affine hull."""
    last = null[-1]
    # Rotate so that only the first null vector has a last entry.
    rotation, _ = np.linalg.qr(np.concatenate([last[:, None], np.eye(len(last))], axis=1))
    turned = rotation[:, : len(last)].T @ null.T
    head = turned[0]
    base = head[:-1] * scale / (head[-1] if head[-1] != 0 else np.finfo(float).eps)
    directions = np.linalg.qr(turned[1:, :-1].T)[0].T if len(last) > 1 else np.zeros((0, len(base)))
    base = base - directions.T @ (directions @ base)
    return Hull(base, directions, singular, weights)


class Count(NamedTuple):
    """The number of heads, the gap of every candidate, and the hull of the chosen one."""

    num_heads: int
    gaps: list[float]
    hull: Hull


def count_heads(slabs: Slabs, most: int) -> Count:
    """Try 1 .. `most` heads; the fewest with a clear gap, or the widest gap when none is clear.

    The fewest, because one head more can gain a gap as wide by declaring the few slabs false that see a direction
    at all (for ±1 tokens some directions are seen by one slab in twenty).
    """
    hulls = [fit_hull(slabs, m) for m in range(1, most + 1)]
    gaps = [hull.gap for hull in hulls]
    enough = max(calibration.CLEAR_GAP, calibration.GAP_SHARE * max(gaps))
    clear = [place for place, gap in enumerate(gaps) if gap >= enough]
    best = clear[0] if clear else int(np.argmax(gaps))
    return Count(best + 1, gaps, hulls[best])


def half_disagreement(slabs: Slabs, num_heads: int) -> float:
    """How far apart the hulls of two halves of the slabs are, over the size of the base: an error indicator."""
    whole = fit_hull(slabs, num_heads)
    worst = 0.0
    for half in (0, 1):
        hull = fit_hull(slabs.take(np.arange(half, len(slabs.offsets), 2)), num_heads)
        corners = [hull.base, *(hull.base + base_norm(whole) * direction for direction in hull.directions)]
        worst = max(worst, *(whole.distance(corner) for corner in corners))
    return worst / base_norm(whole)


def base_norm(hull: Hull) -> float:
    """Norm of the base: the natural unit of lengths in the space of heads."""
    return float(max(np.linalg.norm(hull.base), np.finfo(float).tiny))
