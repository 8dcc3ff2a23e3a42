"""Square waves of a secret linear form as attention layers: the learning-with-rounding family.

Secret integers s_p in 0..q-1 (q even) give N = sum_p s_p (1 - b_p)/2. Head i writes one jump at t_i = i q/2 - 1/2,
so that on b_l = -1 row 1 is (x_1o - x_2o)(f(N) - 1) with f = ±1 the square wave of period q, exact for
N <= (m+1) q/2 - 1. m heads make m jumps, m/2 periods. True learning-with-rounding writes each bit of the form in a
coordinate of its own, with the weight 2^r s_p mod q for bit r of a_p, so that N = <a, s> mod q for every a in Z_q^n and
the layer answers the highest bit of <a, s> mod q. N reaches n log2(q) (q - 1) and every multiple of q/2 below is a jump:
about 2 n log2 q heads. A small m is not cryptographically hard; the bound is asymptotic in n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.hard._parity import STEEPNESS, step_layer


def rounding(
    dim: int, num_heads: int, modulus: int = 4, secret: Sequence[int] | None = None, seed: int = 0
) -> AttentionLayer:
    """A layer that computes the square wave of period `modulus` of a secret linear form of the bits.

    >>> layer = rounding(dim=6, num_heads=2, modulus=4, secret=(1, 2, 0, 1))
    >>> layer.num_heads
    2
    """
    require(num_heads >= 2 and num_heads % 2 == 0, "num_heads", "must be even and at least 2", num_heads)
    require(dim >= 3, "dim", "must be at least 3", dim)
    require(modulus >= 2 and modulus % 2 == 0, "modulus", "must be even and at least 2", modulus)
    drawn = np.random.default_rng([seed, 0x20DE]).integers(0, modulus, dim - 2).tolist()
    form = drawn if secret is None else list(secret)
    good = len(form) == dim - 2 and all(0 <= s < modulus for s in form)
    require(good, "secret", f"must hold dim - 2 = {dim - 2} integers in 0..{modulus - 1}", form)
    weights = np.concatenate([np.asarray(form, float), [0.0, 0.0]])
    return step_layer(weights, np.arange(1, num_heads + 1) * modulus / 2 - 0.5, STEEPNESS)


def rounding_reach(num_heads: int, modulus: int) -> int:
    """The largest value of the linear form up to which the layer is an exact square wave.

    >>> rounding_reach(4, 4)
    9
    """
    return (num_heads + 1) * modulus // 2 - 1


def lwr_heads(length: int, modulus: int) -> int:
    """Heads that learning with rounding of `length` secrets mod `modulus` needs, whatever the secret.

    >>> lwr_heads(length=10, modulus=16)        # about 2 n log2 q = 80
    76
    """
    require(length >= 1, "length", "must be at least 1", length)
    require(modulus >= 2 and modulus & (modulus - 1) == 0, "modulus", "must be a power of two", modulus)
    return _heads_up_to(length * (modulus.bit_length() - 1) * (modulus - 1), modulus)


def learning_with_rounding(secret: Sequence[int], modulus: int) -> AttentionLayer:
    """The layer that answers the highest bit of <a, s> mod q for every a in Z_q^n, one coordinate per bit of a.

    Coordinate p log2 q + r holds bit r of a_p. It takes as many heads as this secret needs, at most
    `lwr_heads(len(secret), modulus)`.

    >>> learning_with_rounding((3, 5), modulus=8).dim
    8
    """
    require(modulus >= 2 and modulus & (modulus - 1) == 0, "modulus", "must be a power of two", modulus)
    good = len(secret) >= 1 and all(0 <= s < modulus for s in secret) and any(secret)
    require(good, "secret", f"must hold integers in 0..{modulus - 1}, not all zero", list(secret))
    bits = modulus.bit_length() - 1
    weights = [(s << r) % modulus for s in secret for r in range(bits)]
    num_heads = _heads_up_to(sum(weights), modulus)
    return rounding(len(weights) + 2, num_heads, modulus, weights)


def _heads_up_to(largest: int, modulus: int) -> int:
    """The least even m with `rounding_reach(m, modulus)` >= `largest`."""
    jumps = max(2, -(-2 * (largest + 1) // modulus) - 1)
    return jumps + jumps % 2
