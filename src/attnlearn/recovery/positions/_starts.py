"""Scores that a fit starts from: random ones, those of another kind, and those whose slowest pair turns the other way."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn.recovery.positions._kinds import Kind
from attnlearn.scores import Bilinear, Offsets, Relative, Rotary, Rotation


def random_scores(kind: Kind, heads: int, dim: int, rng: np.random.Generator) -> Any:
    """Random scores whose standard deviation on white tokens is about a half.

    >>> random_scores(Rotation((1.0, 0.1)), 3, 5, np.random.default_rng(0)).heads
    3
    """
    if isinstance(kind, Rotation):
        a, b = rng.standard_normal((2, heads, dim, kind.width)) / np.sqrt(2 * dim * np.sqrt(kind.width))
        return Rotary.of_factors(a, b, kind)
    whole = Bilinear.whole(rng.standard_normal((heads, dim, dim)) / (2 * dim), np.zeros((heads, dim)))
    return Relative(whole, np.zeros((heads, kind.numbers)), kind) if isinstance(kind, Offsets) else whole


def recast(scores: Rotary, rotation: Rotation) -> Rotary:
    """The coordinates of these scores with other frequencies, pair by pair; where fewer turn, those that turned about as fast go on.

    >>> old = Rotary(*np.zeros((2, 1, 3, 4)), Rotation((1.0, 0.1)))
    >>> recast(old, Rotation((0.2,), still=2)).rotation.still
    2
    """
    before = scores.rotation
    if rotation.pairs == before.pairs:
        return Rotary(scores.a, scores.b, rotation)
    left = dict(enumerate(before.frequencies))
    chosen: list[int] = []
    for wanted in rotation.frequencies:
        chosen.append(min(left, key=lambda pair: abs(np.log(left[pair] / wanted))))
        del left[chosen[-1]]
    turning = [*chosen, *(before.pairs + pair for pair in chosen)]
    rest = [place for place in range(before.width) if place not in turning]
    order = np.array(turning + rest)
    a, b = scores.a[..., order], scores.b[..., order].copy()
    b[:, -1, 2 * rotation.pairs :] = 0  # the key bias of coordinates at rest is invisible
    return Rotary(a, b, rotation)


def conjugated(scores: Rotary, head: int) -> Rotary:
    """The scores with the slowest pair of a head turning the other way."""
    pair = scores.rotation.pairs + int(np.argmin(np.abs(scores.rotation.frequencies)))
    a, b = scores.a.copy(), scores.b.copy()
    a[head, :, pair] *= -1
    b[head, :, pair] *= -1
    return Rotary(a, b, scores.rotation)
