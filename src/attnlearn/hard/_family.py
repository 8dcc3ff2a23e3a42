"""The parity family as a whole: how many members it has, and that nothing but J tells them apart.

Row 1 of a member is f_J = u (chi_J - 1) in the read-out coordinate, with u = (x_1o - x_2o) 1[b_l = -1] and
chi_J(b) = prod_{p in J} b_p. The common part -u does not know J. The rests u chi_J are orthogonal:

    E[u chi_J u chi_J'] = E[u^2] E[chi_J chi_J'] = 1[J = J'],    E[u^2] = 2 * 1/2 = 1,

because u looks at coordinates outside J only. The label chi_J is visible in an answer when u != 0, that is in a
quarter of the inputs (`VISIBLE`).

Cost: `parity_gram` evaluates every member on all 2^d patterns of bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from attnlearn._errors import require
from attnlearn._types import Tokens
from attnlearn.hard._parity import check_shape, parity

VISIBLE = 0.25
"""P(b_l = -1 and x_1o != x_2o): two fair bits."""
MOST_DIM = 12
"""Enumeration of 2^d patterns: at d = 12 a member takes 4096 sequences."""


def parity_members(dim: int, num_heads: int) -> int:
    """Number of hidden sets of `num_heads` coordinates: C(d - 2, m).

    >>> parity_members(10, 4)
    70
    """
    check_shape(dim, num_heads)
    return math.comb(dim - 2, num_heads)


def parity_subsets(dim: int, num_heads: int) -> Iterator[tuple[int, ...]]:
    """The hidden sets of the family, in lexicographic order.

    >>> next(parity_subsets(10, 4))
    (0, 1, 2, 3)
    """
    check_shape(dim, num_heads)
    return itertools.combinations(range(dim - 2), num_heads)


def all_patterns(dim: int) -> Tokens:
    """Every pattern of the bits b as a sequence of two tokens: x_1 = 1, x_2 = b.

    The outputs of the family depend on (b, x_1o) alone and are odd in x_1o, so these are all cases up to a sign.

    >>> all_patterns(3).shape
    (8, 2, 3)
    """
    require(1 <= dim <= MOST_DIM, "dim", f"must be between 1 and {MOST_DIM} to enumerate 2^dim patterns", dim)
    bits = np.array(list(itertools.product((1.0, -1.0), repeat=dim)))
    return np.stack([np.ones_like(bits), bits], axis=1)


def parity_gram(
    dim: int, num_heads: int, subsets: Sequence[Sequence[int]] | None = None
) -> Float[np.ndarray, "D D"]:
    """Inner products of the members' outputs (row 1) after their common part, over all patterns of bits.

    The outputs are those of the layers themselves, not of the formula; exact enumeration gives the identity.

    >>> gram = parity_gram(6, 2)
    >>> gram.shape, bool(np.abs(gram - np.eye(6)).max() < 1e-9)
    ((6, 6), True)
    """
    chosen = list(parity_subsets(dim, num_heads)) if subsets is None else [tuple(s) for s in subsets]
    x = all_patterns(dim)
    outputs = np.stack([parity(dim, num_heads, subset)(x)[:, 0, -1] for subset in chosen])
    seen = x[:, 1, -2] == -1
    common = -(x[:, 0, -1] - x[:, 1, -1]) * seen
    rest = outputs - common
    return rest @ rest.T / len(x)
