"""A dial from a generic layer to a member of the parity family.

At hardness t every Theta_i and W_i points along (1 - t) generic + t parity (unit matrices) and has the norm
generic^(1-t) parity^t: both ends are exact, and steepness grows evenly in between, so that no end swamps the other.
"""

from __future__ import annotations

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.hard._parity import parity


def dial(dim: int, num_heads: int, hardness: float, scale: float = 2.0, seed: int = 0) -> AttentionLayer:
    """The layer at `hardness` between `AttentionLayer.random` (0) and `parity` (1), both drawn by `seed`.

    >>> hard_end = dial(8, 4, hardness=1.0, seed=3)
    >>> bool(np.allclose(hard_end.theta, parity(8, 4, seed=3).theta))
    True
    """
    require(0 <= hardness <= 1, "hardness", "must be between 0 and 1", hardness)
    easy = AttentionLayer.random(num_heads, dim, scale=scale, seed=seed)
    difficult = parity(dim, num_heads, seed=seed)
    theta = _between(easy.theta, difficult.theta, hardness)
    return AttentionLayer(theta, _between(easy.w, difficult.w, hardness))


def _between(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    sizes = [np.linalg.norm(a, axis=(1, 2), keepdims=True) for a in (first, second)]
    direction = (1 - share) * first / sizes[0] + share * second / sizes[1]
    direction /= np.linalg.norm(direction, axis=(1, 2), keepdims=True)
    return sizes[0] ** (1 - share) * sizes[1] ** share * direction
