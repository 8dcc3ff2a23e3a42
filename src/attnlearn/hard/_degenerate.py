"""Families that approach a broken non-degeneracy condition as `distance` goes to 0.

| kind | what breaks at distance 0 |
|---|---|
| close-heads | two heads have the same scores and merge |
| cancelling-projections | the projections sum to zero |
| rank-one | every Theta_i has rank one |
| tiny-head | one head's projection vanishes |
| flat-head | one head's scores vanish: it averages |
"""

from __future__ import annotations

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer

DEGENERACIES = ("close-heads", "cancelling-projections", "rank-one", "tiny-head", "flat-head")


def near_degenerate(
    kind: str, dim: int, num_heads: int, distance: float, scale: float = 2.0, seed: int = 0
) -> AttentionLayer:
    """A random layer at relative `distance` from breaking the condition `kind`.

    >>> layer = near_degenerate("close-heads", dim=6, num_heads=2, distance=0.1)
    >>> round(float(np.linalg.norm(layer.theta[1] - layer.theta[0]) / np.linalg.norm(layer.theta[0])), 6)
    0.1
    """
    require(kind in DEGENERACIES, "kind", f"must be one of {', '.join(DEGENERACIES)}", kind)
    require(num_heads >= 2, "num_heads", "must be at least 2", num_heads)
    require(0 <= distance <= 1, "distance", "must be between 0 and 1", distance)
    layer = AttentionLayer.random(num_heads, dim, scale=scale, seed=seed)
    theta, w = layer.theta.copy(), layer.w.copy()
    if kind == "close-heads":
        theta[1] = theta[0] + distance * theta[1] * np.linalg.norm(theta[0]) / np.linalg.norm(theta[1])
    elif kind == "cancelling-projections":
        w[-1] = distance * w[-1] - w[:-1].sum(axis=0)
    elif kind == "rank-one":
        u, s, vt = np.linalg.svd(theta)
        s[:, 1:] *= distance
        theta = (u * s[:, None, :]) @ vt
        theta *= scale / np.linalg.norm(theta, axis=(1, 2), keepdims=True)
    elif kind == "tiny-head":
        w[-1] *= distance
    else:
        theta[-1] *= distance
    return AttentionLayer(theta, w)
