"""Tokens and outputs with structure that nobody declared: frames, copies among many, rounding, rare heads, structured noise.

Where the data show the layer, finding it and withholding the claim are both right. Where outputs are not those of a layer,
no claim about heads is true.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._plain import forward
from tests.problems._problem import (
    FIT_FAILED,
    GENERAL_POSITION,
    HONEST,
    Fresh,
    Problem,
    from_tokens,
    precision,
    random_layer,
)
from tests.problems._tied import shape

LOOSELY = HONEST | FIT_FAILED


def _bent(name: str, rng: np.random.Generator, function: Callable[[np.ndarray], np.ndarray], d: int, k: int):
    """Outputs of a function that is no layer, on free tokens."""
    seed = int(rng.integers(2**31))

    def draw(num: int, _=None, side: int = 1) -> Fresh:
        x = np.random.default_rng([seed, side]).standard_normal((num, k, d))
        return Fresh(x, function(x))

    x, y = draw(4000, side=0)[:2]
    return Problem(
        name, x, y, None, FIT_FAILED | {"HEADS_INDISTINGUISHABLE", "ATTENTION_TOO_WEAK"}, draw=draw
    )


def frames(rng):
    """The tokens of a sequence are orthonormal: quadratic relations that give no token."""
    d, k, m = int(rng.integers(5, 8)), int(rng.integers(3, 5)), int(rng.integers(1, 4))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return np.sqrt(d) * np.swapaxes(np.linalg.qr(g.standard_normal((n, d, k)))[0], 1, 2)

    return from_tokens(
        "orthonormal tokens", rng, random_layer(rng, d, m), tokens, LOOSELY, dtype=precision(rng)
    )


def equal_norms(rng):
    """The tokens of a sequence have one norm, which changes from sequence to sequence."""
    d, k, m = shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = g.standard_normal((n, k + 1, d))
        return u / np.linalg.norm(u, axis=2, keepdims=True) * g.uniform(1, 3, (n, 1, 1)) * np.sqrt(d) / 2

    return from_tokens("one norm a sequence", rng, random_layer(rng, d, m), tokens, LOOSELY)


def walks(rng):
    """Each token is the one before it and a step."""
    d, k, m = shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return np.cumsum(g.standard_normal((n, k + 2, d)), axis=1) / np.sqrt(k)

    return from_tokens("random walks", rng, random_layer(rng, d, m), tokens, LOOSELY, dtype=precision(rng))


def cubes(rng):
    """One token is a cubic function of another, coordinate by coordinate."""
    d, k, m = shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = g.standard_normal((n, k + 1, d))
        return np.concatenate([u, u[:, :1] ** 3 / 3], axis=1)

    return from_tokens("a token cubed", rng, random_layer(rng, d, m), tokens, LOOSELY)


def bfloat16(rng):
    """Tokens rounded to bfloat16, outputs in float32 or float64."""
    d, k, m = shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        bits = g.standard_normal((n, k + 2, d)).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)

    return from_tokens(
        "bfloat16 tokens",
        rng,
        random_layer(rng, d, m),
        tokens,
        LOOSELY,
        dtype=precision(rng),
        excuses=GENERAL_POSITION,
    )


def mixture(rng):
    """Every sequence is antipodal, collinear or free, the free ones seldom."""
    d, k, m = shape(rng)
    shares = np.array([0.5, 0.5 - 0.02, 0.02])

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = g.standard_normal((n, k, d))
        tied = np.concatenate([u, -u], axis=1)
        line = g.standard_normal((n, 2 * k, 1)) * g.standard_normal((n, 1, d))
        kind = g.choice(3, n, p=shares)[:, None, None]
        return np.where(kind == 0, tied, np.where(kind == 1, line, g.standard_normal((n, 2 * k, d))))

    return from_tokens("three kinds of sequences", rng, random_layer(rng, d, m), tokens, LOOSELY, n=5000)


def causal_padded(rng):
    """A causal layer on sequences of two or three visible tokens, rarely more."""
    d, _, m = shape(rng)

    def padding(g: np.random.Generator, n: int) -> np.ndarray:
        lengths = np.where(g.random(n) < 0.02, 6, g.integers(2, 4, n))
        return np.arange(6) < lengths[:, None]

    layer = random_layer(rng, d, m, causal=True)
    return from_tokens(
        "causal and padded", rng, layer, lambda g, n: g.standard_normal((n, 6, d)), LOOSELY, padding=padding
    )


def copies_in_a_row(rng):
    """Few sequences, each three hundred times in a row with a jitter: only C1 is asked for."""
    d, k, m = 6, 4, 2
    layer, seed = random_layer(rng, d, m), int(rng.integers(2**31))
    few = np.repeat(rng.standard_normal((40, k, d)), 300, axis=0)
    x = few + 1e-6 * rng.standard_normal(few.shape)

    def draw(num: int, _=None) -> Fresh:
        fresh = np.random.default_rng(seed).standard_normal((num, k, d))
        return Fresh(fresh, forward(layer, fresh))

    return Problem(
        "copies side by side", x, forward(layer, x), layer, LOOSELY, draw=draw, options={"target": 1e-3}
    )


def bent_outputs(rng):
    """A layer and a small smooth function of its outputs."""
    d, k, m = shape(rng)
    layer, size = random_layer(rng, d, max(m, 2)), float(10.0 ** rng.uniform(-6, -1))

    def function(x: np.ndarray) -> np.ndarray:
        y = forward(layer, x)
        return y + size * np.tanh(y) * np.abs(y)

    return _bent("a layer, bent a little", rng, function, d, k + 1)


def temperature(rng):
    """Scores are multiplied by a number that depends on the sequence."""
    d, k, m = shape(rng)
    layer, size = random_layer(rng, d, m, bias=False), float(10.0 ** rng.uniform(-5, -0.5))

    def function(x: np.ndarray) -> np.ndarray:
        warm = 1 + size * np.tanh(x.mean(axis=(1, 2)))
        return np.concatenate(
            [
                forward(AttentionLayer(layer.theta * t, layer.w), one[None])
                for t, one in zip(warm, x, strict=True)
            ]
        )

    return _bent("a temperature of its own", rng, function, d, k + 1)


STRUCTURED: dict[str, Callable[[np.random.Generator], Problem]] = {
    "orthonormal in a sequence": frames,
    "equal norms": equal_norms,
    "walks": walks,
    "cubes": cubes,
    "bfloat16": bfloat16,
    "three kinds": mixture,
    "causal and padded": causal_padded,
    "copies side by side": copies_in_a_row,
    "bent a little": bent_outputs,
    "temperature": temperature,
}
