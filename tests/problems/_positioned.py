"""Random layers whose scores depend on positions: rotary ones, also grouped, windowed and with key biases, tables and slopes.

Scores of white tokens have about the standard deviation `scale` at every offset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.scores import Bilinear, Offsets, Relative, Rotary, Visible, frequencies

ROTARY = ("rotary", "grouped", "window", "key bias")
RELATIVE = ("table", "slopes")
KEY_BIAS = 0.5
"""Size of key biases relative to the keys of white tokens."""


class Shape(NamedTuple):
    """Heads, dimension, width of a head, tokens, and what else a layer is made of."""

    heads: int
    dim: int
    width: int
    tokens: int
    window: int | None = None
    base: float = 1e4
    scale: float = 1.5
    causal: bool = True


def random_by_offset(kind: str, shape: Shape, rng: np.random.Generator) -> AttentionLayer:
    """A random layer of one of the kinds of `ROTARY` and `RELATIVE`."""
    m, d, width = shape.heads, shape.dim, shape.width
    groups = m // 2 if kind == "grouped" else m
    query = rng.standard_normal((m, d, width)) * shape.scale / np.sqrt(d * d * width)
    key, value = (_shared(rng.standard_normal((groups, d, width)), m) for _ in range(2))
    w = value @ rng.standard_normal((m, width, d)) / np.sqrt(d * width)
    if kind in ROTARY:
        bias = rng.standard_normal((m, width)) * KEY_BIAS * np.sqrt(d) if kind == "key bias" else None
        rotation = frequencies(width, base=shape.base).rotation
        scores: Any = Rotary.of_factors(query, key, rotation, key_bias=bias)
    else:
        base = Bilinear.whole(query @ np.swapaxes(key, 1, 2), np.zeros((m, d)))
        scores = _relative(kind, base, shape, rng)
    visible = Visible(shape.causal, shape.window if kind == "window" else None)
    return AttentionLayer.from_scores(scores, w, causal=visible)


def _shared(arrays: np.ndarray, heads: int) -> np.ndarray:
    return np.repeat(arrays, heads // len(arrays), axis=0)


def _relative(kind: str, base: Bilinear, shape: Shape, rng: np.random.Generator) -> Relative:
    """A table of standard normal numbers, or slopes 2^(-8 i / m), as ALiBi has them."""
    if kind == "slopes":
        slopes = 2.0 ** (-8 * np.arange(1, shape.heads + 1) / shape.heads)
        return Relative(base, slopes[:, None], Offsets("slope"))
    numbers = 2 * shape.tokens - 1
    return Relative(
        base, rng.standard_normal((shape.heads, numbers)), Offsets("table", reach=shape.tokens - 1)
    )
