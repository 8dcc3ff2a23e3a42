"""Parities of a hidden set of bits as attention layers: hard for every statistical-query learner.

Two tokens x_1, x_2 in {±1}^d carry the bits b_p = x_1p x_2p. With the hidden set J, the spare coordinate l = d - 2,
the read-out coordinate o = d - 1 and steepness s, head i = 1..m has

    Theta_i = (s/2) diag(1_J) - (s (i - 1/2)/2) e_l e_l^T,      W_i = 2 (-1)^i e_o e_o^T.

On b_l = -1 head i attends to its own token when at least i bits of J are -1, so that the alternating sum is the
parity: row 1 of the output is (x_1o - x_2o) 1[b_l = -1] (parity_J(b) - 1) in coordinate o, row 2 its negative, the
rest 0. The weights stay ±2, and the C(d-2, |J|) members are orthogonal after their common part. With two keys only
functions can be compared, never parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer

STEEPNESS = 70.0
"""exp(-70/2) is below the rounding of float64, so the sigmoids are exact steps."""


def parity_subset(dim: int, num_heads: int, seed: int = 0) -> tuple[int, ...]:
    """The hidden set that `parity` draws for this seed: `num_heads` of the first dim - 2 coordinates.

    >>> len(parity_subset(10, 4))
    4
    """
    check_shape(dim, num_heads)
    rng = np.random.default_rng([seed, 0x9A217])
    return tuple(sorted(rng.choice(dim - 2, size=num_heads, replace=False).tolist()))


def parity(dim: int, num_heads: int, subset: Sequence[int] | None = None, seed: int = 0) -> AttentionLayer:
    """A layer that computes the parity of `subset` (drawn by `seed` when left out); `num_heads` is even.

    A subset of odd size |J| takes |J| + 1 heads.

    >>> layer = parity(dim=5, num_heads=2, subset=(0, 1))
    >>> x = np.array([[1.0, 1, 1, 1, 1], [1.0, -1, 1, -1, -1]])     # one bit of the subset is -1: odd parity
    >>> layer(x)[:, 4].round(9).tolist()
    [-4.0, 4.0]
    """
    hidden = parity_subset(dim, num_heads, seed) if subset is None else tuple(subset)
    check_shape(dim, num_heads)
    inside = len(set(hidden)) == len(hidden) and all(0 <= p < dim - 2 for p in hidden)
    require(inside, "subset", f"must hold different coordinates below dim - 2 = {dim - 2}", hidden)
    heads = len(hidden) + len(hidden) % 2
    require(heads == num_heads, "subset", f"must have {num_heads} or {num_heads - 1} members", hidden)
    indicator = np.zeros(dim)
    indicator[list(hidden)] = 1.0
    return step_layer(indicator, np.arange(1, num_heads + 1) - 0.5, STEEPNESS)


def step_layer(weights: np.ndarray, thresholds: np.ndarray, steepness: float) -> AttentionLayer:
    """Head i steps from one token to the other where sum_p weights_p (1 - b_p)/2 passes thresholds_i.

    The steps carry alternating weights -2, +2, ... into the last coordinate and are switched by the one before.
    """
    dim, num_heads = len(weights), len(thresholds)
    theta = np.zeros((num_heads, dim, dim))
    theta[:] = np.diag(steepness / 2 * weights)
    theta[:, dim - 2, dim - 2] -= steepness / 2 * thresholds
    w = np.zeros((num_heads, dim, dim))
    w[:, dim - 1, dim - 1] = 2.0 * (-1.0) ** np.arange(1, num_heads + 1)
    return AttentionLayer(theta, w)


def check_shape(dim: int, num_heads: int) -> None:
    """Refuse sizes that no member of the family has."""
    require(num_heads >= 2 and num_heads % 2 == 0, "num_heads", "must be even and at least 2", num_heads)
    require(dim >= num_heads + 2, "dim", f"must be at least num_heads + 2 = {num_heads + 2}", dim)
