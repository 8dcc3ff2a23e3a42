"""How many singular values count: those above a noise, or those before a fall.

Singular values come head by head, (m, r), the largest first. Which noise applies is the caller's to say: the rounding of stored weights
(`RANK_TOLERANCE`), a residual, or the edge of a moment's noise. What can fail: values that fall evenly have no rank, and
`largest_fall` says None.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnlearn._summary import RANK_TOLERANCE


def rank_above(values: Float[np.ndarray, "m r"], noise: float | Float[np.ndarray, "m 1"]) -> int:
    """The largest number of values above the noise that a head has.

    >>> rank_above(np.array([[3.0, 1.0, 0.1], [2.0, 0.1, 0.0]]), 0.5)
    2
    """
    return int(np.sum(values > noise, axis=-1).max())


def largest_rank(matrices: Float[np.ndarray, "m a b"], tolerance: float = RANK_TOLERANCE) -> int:
    """The largest rank of the matrices: singular values above `tolerance` of each one's largest.

    >>> largest_rank(np.stack([np.diag([1.0, 1e-3, 0]), np.diag([1e-5, 0, 0])]))
    2
    """
    values = np.linalg.svd(np.asarray(matrices, np.float64), compute_uv=False)
    return rank_above(values, tolerance * values[:, :1])


def joint_rank(matrices: Float[np.ndarray, "m d e"]) -> int:
    """Rank that a sum of the matrices has unless they cancel: that of all of them side by side, or on top of each other.

    >>> joint_rank(np.stack([np.diag([1.0, 1, 0, 0]), np.diag([-1.0, 0, 1, 0])]))
    3
    """
    sides = (np.concatenate(list(matrices), axis=axis)[None] for axis in (0, 1))
    return max(1, min(largest_rank(side) for side in sides))


def profile(values: Float[np.ndarray, "m r"]) -> Float[np.ndarray, "r"]:
    """The geometric mean of the heads' values, place by place: it falls where all of them fall."""
    return np.exp(np.log(np.maximum(values, np.finfo(float).tiny)).mean(axis=0))


def steepest(values: Float[np.ndarray, "l"], surplus: int = 1) -> tuple[int, float]:
    """How many values stand before their largest fall, and its factor; at least `surplus` values come after it.

    >>> steepest(np.array([3.0, 2.0, 0.1, 0.09]))
    (2, 20.0)
    """
    last = len(values) - surplus
    if last < 1:
        return 1, 1.0
    falls = values[:last] / np.maximum(values[1 : last + 1], np.finfo(float).tiny)
    place = int(np.argmax(falls))
    return place + 1, float(falls[place])


def largest_fall(values: Float[np.ndarray, "l"], least: float, surplus: int = 1) -> int | None:
    """How many values stand before their largest fall; None if they fall by less than the factor `least`.

    >>> largest_fall(np.array([3.0, 2.0, 0.1, 0.09]), 10.0), largest_fall(np.array([3.0, 2.0, 1.0]), 10.0)
    (2, None)
    """
    rank, fall = steepest(values, surplus)
    return rank if fall >= least else None
