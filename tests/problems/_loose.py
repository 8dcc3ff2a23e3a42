"""Tokens that depend on each other and show their layer all the same, though some of them hardly: ties with a way out.

Finding the layer and withholding the claim are both right; a claim that is false is not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.problems._problem import HONEST, Problem, from_tokens, mixed, precision, random_layer
from tests.problems._tied import free_tokens, shape


def sums(rng):
    """u, v, u + v: one token is the sum of the others, which no single map permutes."""
    d, _, m = shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = free_tokens(g, n, 2, d)
        return mixed(np.concatenate([u, u.sum(axis=1, keepdims=True)], axis=1), g)

    return from_tokens("u, v, u + v", rng, random_layer(rng, d, m), tokens, HONEST, dtype=precision(rng))


def few_free(rng):
    """Antipodal tokens, but for a few sequences in a thousand."""
    d, k, m = shape(rng)
    share = float(10.0 ** rng.uniform(-3, -1.3))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = free_tokens(g, n, k, d)
        return np.where(
            g.random((n, 1, 1)) < share, free_tokens(g, n, 2 * k, d), np.concatenate([u, -u], axis=1)
        )

    return from_tokens("antipodal but for a few", rng, random_layer(rng, d, m), tokens, HONEST, n=5000)


def nearly(rng):
    """Antipodal up to a jitter of 1e-10 to 1e-2."""
    d, k, m = shape(rng)
    jitter = float(10.0 ** rng.uniform(-10, -2))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = free_tokens(g, n, k, d)
        return np.concatenate([u, -u], axis=1) + jitter * free_tokens(g, n, 2 * k, d)

    return from_tokens(
        "nearly antipodal", rng, random_layer(rng, d, m), tokens, HONEST | {"NUMERICAL_FAILURE"}
    )


def two_ties(rng):
    """Half of the sequences antipodal, half mirrored: each half alone leaves another map open."""
    d, k, m = shape(rng)
    signs = np.ones(d)
    signs[0] = -1

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = free_tokens(g, n, k, d)
        image = np.where(g.random((n, 1, 1)) < 0.5, -u, u * signs)
        return np.concatenate([u, image], axis=1)

    return from_tokens(
        "two ties by turns", rng, random_layer(rng, d, m), tokens, HONEST, dtype=precision(rng)
    )


def palindromes(rng):
    """u, v, w, v, u: keys with unequal multiplicities."""
    d, _, m = shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return free_tokens(g, n, 3, d)[:, [0, 1, 2, 1, 0]]

    return from_tokens("palindromes", rng, random_layer(rng, d, m), tokens, HONEST, dtype=precision(rng))


def antipodal_causal(rng):
    """Under a causal mask a row sees one token without its partner, which breaks the tie."""
    d, k, m = shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = free_tokens(g, n, k, d)
        return np.stack([u, -u], axis=2).reshape(n, 2 * k, d)

    layer = random_layer(rng, d, m, causal=True)
    return from_tokens("antipodal, causal", rng, layer, tokens, HONEST, dtype=precision(rng))


LOOSE: dict[str, Callable[[np.random.Generator], Problem]] = {
    "sums": sums,
    "few free": few_free,
    "nearly tied": nearly,
    "two ties": two_ties,
    "palindromes": palindromes,
    "tied, causal": antipodal_causal,
}
