"""C2 beside errors: needed heads, planted heads, heads split in two."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve.noise._needed import chance_of_wins, heads_needed, split_heads
from attnlearn.solve.noise._planted import detection_limits

from ._problems import TRUTH, fitted


def sides(used: Batch) -> tuple[Batch, Batch]:
    return used.take(np.arange(700)), used.take(np.arange(700, used.num))


def test_true_heads_are_needed_and_an_idle_one_is_not(rng):
    layer, used = fitted(rng, fresh=200)
    fit, held = sides(used)
    assert heads_needed(layer, fit, held).doubtful < 1e-6
    idle = AttentionLayer(
        np.concatenate([layer.theta, layer.theta[:1] * 0.5]), np.concatenate([layer.w, 0 * layer.w[:1]])
    )
    assert heads_needed(idle, fit, held).doubtful > 1e-3


def test_one_head_is_compared_with_a_plain_average(rng):
    truth = AttentionLayer.random(1, 5, seed=2)
    layer, used = fitted(rng, truth=truth, fresh=200)
    assert heads_needed(layer, *sides(used)).doubtful < 1e-6
    flat = truth.replace(theta=np.zeros_like(truth.theta))
    layer, used = fitted(rng, level=0.3, truth=flat, fresh=200)
    assert heads_needed(layer, *sides(used)).doubtful > 1e-6


def test_two_heads_where_one_was_fitted_are_found(rng):
    truth = AttentionLayer.random(1, 5, seed=2)
    layer, used = fitted(rng, truth=truth, fresh=200)
    assert split_heads(layer, *sides(used)) > 1e-4
    _, both = fitted(rng, truth=TRUTH, fresh=200)
    one = AttentionLayer(TRUTH.theta.mean(axis=0)[None], TRUTH.w.sum(axis=0)[None])
    assert split_heads(one, *sides(both)) < 1e-6


def test_limits_grow_with_the_noise(rng):
    quiet, loud = (
        detection_limits(layer, used.first(500), example_scale(used), judged=200)
        for layer, used in (fitted(rng, level=level) for level in (1e-3, 0.1))
    )
    assert 0 < quiet.visible < 0.1 * loud.visible
    assert 0 < quiet.apart < 0.5 * loud.apart


def test_wins():
    assert chance_of_wins(10, 10) == 2.0**-10
    assert chance_of_wins(5, 10) > 0.5
