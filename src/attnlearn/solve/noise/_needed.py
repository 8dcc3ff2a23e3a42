"""Is every head needed? A sign test for each against the best fit that was found without it.

Without head i, the scores and W of all others are fitted again. On every certify unit one of the two layers has the smaller error. If
the layer without the head were as good, each would win half of the time; wins of the layer with it beyond chance show that it
is needed, whatever the distribution of the errors.

Cost: a short refinement for each of the cheapest heads, W and b alone for the others. What can fail: a better fit with fewer heads that was
not found; the claim says so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression, drop_costs
from attnlearn.solve._regress import regress
from attnlearn.solve._white import whitening
from attnlearn.solve.refinement import RefineConfig, refine


class Needed(NamedTuple):
    """The chance of so many wins for each head if it were not needed, and how many heads had all others refitted."""

    chances: Float[np.ndarray, "m"]
    refitted: int

    @property
    def doubtful(self) -> float:
        """The largest chance, corrected for the number of heads."""
        return float(min(1.0, len(self.chances) * self.chances.max()))


def heads_needed(
    layer: AttentionLayer, used: Batch, held: Batch, *, rank: int | None = None, deadline: float | None = None
) -> Needed:
    """Sign tests on the units of `held`; fits without a head are made on `used`.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((300, 5, 4))
    >>> heads_needed(layer, Batch(x[:200], layer(x[:200])), Batch(x[200:], layer(x[200:]))).doubtful < 1e-6
    True
    """
    layer = layer.astype(np.float64)
    used, held = used.astype(np.float64), held.astype(np.float64)
    ours, m = _errors(layer, held), layer.num_heads
    chances = np.ones(m)
    ground = WhitenedRegression(used, layer.causal)
    cheapest = np.argsort(drop_costs(ground.enter(layer), ground))
    for place, head in enumerate(cheapest):
        steps = calibration.TRIES if place < calibration.TRIES else 0
        other = _without(layer, int(head), used, rank, steps, deadline)
        theirs = _errors(other, held)
        wins, losses = int(np.sum(ours < theirs)), int(np.sum(ours > theirs))
        chances[head] = chance_of_wins(wins, wins + losses)
    return Needed(chances, min(m, calibration.TRIES))


def chance_of_wins(wins: int, games: int) -> float:
    """The chance of at least so many wins in so many games with even odds.

    >>> chance_of_wins(3, 3), chance_of_wins(0, 0)
    (0.125, 1.0)
    """
    return float(scipy.special.bdtrc(wins - 1, games, 0.5)) if games else 1.0


def split_heads(
    layer: AttentionLayer, used: Batch, held: Batch, *, seed: int = 0, deadline: float | None = None
) -> float:
    """The chance of what the best of the fits with one head split in two wins against `layer`, corrected for their number.

    >>> layer = AttentionLayer.random(num_heads=1, dim=4, seed=0)
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((300, 5, 4))
    >>> y = layer(x) + 0.01 * rng.standard_normal(x.shape)
    >>> split_heads(layer, Batch(x[:200], y[:200]), Batch(x[200:], y[200:])) > 1e-3
    True
    """
    layer = layer.astype(np.float64)
    used, held = used.astype(np.float64), held.astype(np.float64)
    white, rng, ours = whitening(used.x, used.mask), np.random.default_rng([seed, 0x52]), _errors(layer, held)
    inside = white.enter(layer.parameters)
    tried = np.argsort(-np.linalg.norm(inside.w, axis=(1, 2)))[: calibration.TRIES]
    config = RefineConfig(
        max_steps=calibration.TRIES, max_inner=calibration.STEPS_MOST, equations_per_unknown=np.inf, average=False, lower=False,
        deadline=deadline,
    )  # fmt: skip
    least = 1.0
    for head in tried:
        away = rng.standard_normal(inside.theta[head].shape)
        size = max(float(np.linalg.norm(inside.theta[head])), calibration.NEGLIGIBLE)
        away *= calibration.ENOUGH_SHARE * size / np.linalg.norm(away)
        theta, w, bias = (np.concatenate([part, part[head : head + 1]]) for part in inside[:3])
        theta[head] += away
        theta[-1] -= away
        start = white.leave(Parameters(theta, w, bias, inside.output_bias))
        found = refine(
            AttentionLayer(*start, causal=layer.causal), used.x, used.y, mask=used.mask, config=config
        )
        theirs = _errors(found.layer, held)
        wins, losses = int(np.sum(theirs < ours)), int(np.sum(theirs > ours))
        least = min(least, chance_of_wins(wins, wins + losses))
    return min(1.0, len(tried) * least)


def _without(
    layer: AttentionLayer, head: int, used: Batch, rank: int | None, steps: int, deadline: float | None
) -> AttentionLayer:
    """The best fit found without a head; without the only one, that of a plain average."""
    kept = np.delete(np.arange(layer.num_heads), head)
    if not len(kept):
        flat = np.zeros_like(layer.theta), np.zeros_like(layer.query_bias)
        w, b, _ = regress(*flat, used.x, used.y, mask=used.mask, causal=layer.causal)
        return AttentionLayer(flat[0], w, flat[1], b, causal=layer.causal)
    parts = (layer.theta[kept], layer.w[kept], layer.query_bias[kept])
    start = AttentionLayer(*parts, layer.output_bias, causal=layer.causal)
    config = RefineConfig(
        max_steps=steps, max_inner=calibration.STEPS_MOST, equations_per_unknown=np.inf, average=False, lower=False, deadline=deadline
    )  # fmt: skip
    return refine(start, used.x, used.y, mask=used.mask, rank=rank, config=config).layer


def _errors(layer: AttentionLayer, held: Batch) -> Float[np.ndarray, "units"]:
    """The squared error of every unit."""
    squares = np.sum((layer(held.x, held.mask) - held.visible) ** 2, axis=(1, 2))
    if held.groups is None:
        return squares
    return np.bincount(np.unique(held.groups, return_inverse=True)[1], weights=squares)
