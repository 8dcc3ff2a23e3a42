"""What a further head would have to be to be seen: heads planted in the recorded outputs, and found by the test of fit.

A random head is added to the outputs, and what the fitted heads can absorb of it is taken away (to first order). The smallest size at
which the test of fit sees it is its limit. In the same way a head is split into two that are apart: the least distance at which
a sign test on the certify side would prefer the two (`_needed.split_heads` looks for them). All of `PLANTED` plants must be seen: then a share of at least 86 % of such plants is,
with confidence 95 %.

Cost: one solve with the Gauss-Newton matrix and one regression for each plant. What can fail: heads that are unlike the planted ones,
whose scores are random with the typical norm, or two heads that differ otherwise than by random scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._chunks import on_threads
from attnlearn.solve._white import Whitening, whitening
from attnlearn.solve.certification._point import Point, prepare
from attnlearn.solve.noise._needed import chance_of_wins
from attnlearn.solve.noise._spread import by_chunk, together, unexplained, without_values
from attnlearn.solve.noise._test_of_fit import TestOfFit

PLANTED = 20
"""Plants of each kind: all of 20 seen shows a rate of at least 0.05^(1/20) = 86 % with confidence 95 %."""
APART = 0.3
"""The distance at which a head is split for the measurement; what is left of it grows with the square."""
SIZES = 1e-4, 1e4
"""Sizes between which the limit is looked for, as multiples of the residual (further heads) or of the split as measured."""


class Limits(NamedTuple):
    """The least visibility of a further head that every plant showed, and the least distance of two heads, relative to their norm."""

    visible: float
    apart: float


def detection_limits(
    layer: AttentionLayer, used: Batch, scale: float, *, judged: int, rank: int | None = None, seed: int = 0
) -> Limits:
    """Plant heads in the outputs of `used`, to which `layer` was fitted; `scale` is the typical norm of an output.

    A sign test on `judged` units tells one head from two.

    >>> layer = AttentionLayer.random(num_heads=1, dim=4, seed=0)
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((400, 5, 4))
    >>> y = layer(x) + 1e-3 * rng.standard_normal(x.shape)
    >>> bool(detection_limits(layer, Batch(x, y), 4.0, judged=100).visible < 0.01)
    True
    """
    layer, used = layer.astype(np.float64), used.astype(np.float64)
    rest = used.visible - layer(used.x, used.mask)
    white, rng = whitening(used.x, used.mask), np.random.default_rng([seed, 0x91A7])
    test = TestOfFit(layer, used, seed, only=("products",))
    with on_threads():
        point = prepare(layer, used.x, used.mask, rank, joint=True, sequences=used.num)
        visible = [_further(layer, used, scale, rest, white, rng, test, point) for _ in range(PLANTED)]
        apart = [
            _split(layer, place % layer.num_heads, used, rest, white, rng, judged, point)
            for place in range(PLANTED)
        ]
    return Limits(float(np.max(visible)), float(np.max(apart)))


def _further(
    layer: AttentionLayer, used: Batch, scale: float, rest: np.ndarray, white: Whitening, rng: np.random.Generator,
    test: TestOfFit, point: Point,
) -> float:  # fmt: skip
    """The least visibility, on half of the sequences, at which one random head is seen."""
    r = white.directions
    norms = np.linalg.norm(white.enter(layer.parameters).theta, axis=(1, 2))
    theta = rng.standard_normal((1, r, r))
    theta *= float(np.median(norms)) / np.linalg.norm(theta)
    w = rng.standard_normal((1, r, layer.out_dim))
    planted = _outputs(white, theta, w, np.zeros((1, r)), layer, used)
    planted *= np.sqrt(np.mean(rest**2) / max(float(np.mean(planted**2)), np.finfo(float).tiny))
    unabsorbed = together(point, without_values(point, by_chunk(point, planted))[1], planted.shape[1])
    effect = float(np.median(np.linalg.norm(unabsorbed, axis=(1, 2)))) / scale
    return effect * _least(test.along(rest, unexplained(point, planted)))


def _split(
    layer: AttentionLayer, head: int, used: Batch, rest: np.ndarray, white: Whitening, rng: np.random.Generator,
    judged: int, point: Point,
) -> float:  # fmt: skip
    """The least distance, relative to its norm, at which a sign test tells two heads from the one in their place."""
    inside = white.enter(layer.parameters)
    theta, w, bias = (part[head : head + 1] for part in inside[:3])
    away = rng.standard_normal(theta.shape)
    away *= APART / 2 * max(float(np.linalg.norm(theta)), calibration.NEGLIGIBLE) / np.linalg.norm(away)
    two = _outputs(white, *split_head(Parameters(theta, w, bias, inside.output_bias), away), layer, used)
    change = unexplained(point, two - _outputs(white, theta, w, bias, layer, used))
    before, crossed, square = (np.sum(values, axis=(1, 2)) for values in (rest**2, rest * change, change**2))
    units = min(judged, len(before))

    def seen(size: float) -> bool:
        worse = 2 * size * crossed + size**2 * square > 0
        return (
            chance_of_wins(round(float(worse.mean()) * units), units) <= calibration.DELTA / layer.num_heads
        )

    return APART * float(np.sqrt(_least(seen)))


def split_head(inside: Parameters, away: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Theta, W and bias of two heads on either side of one, which share its W."""
    theta = np.concatenate([inside.theta + away, inside.theta - away])
    return theta, np.repeat(inside.w / 2, 2, axis=0), np.repeat(inside.query_bias, 2, axis=0)


def _outputs(
    white: Whitening, theta: np.ndarray, w: np.ndarray, bias: np.ndarray, layer: AttentionLayer, used: Batch
) -> Float[np.ndarray, "n k o"]:
    """Outputs of heads that are given in white coordinates."""
    found = white.leave(Parameters(theta, w, bias, np.zeros(layer.out_dim)))
    return AttentionLayer(*found, causal=layer.causal)(used.x, used.mask)


def _least(seen: Callable[[float], bool]) -> float:
    """The least size that is seen, to a tenth; infinite if not even the largest is."""
    low, high = SIZES
    if not seen(high):
        return np.inf
    while high > (1 + calibration.DIGIT) * low:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high
