"""Needed heads and heads split in two: sign tests on units against fits with one head less or more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve.noise._needed import Needed, chance_of_wins, heads_needed, split_heads

from ._problems import TRUTH, fitted, sides


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


def test_the_games_are_units(rng):
    layer, used = fitted(rng, fresh=200)
    fit, held = sides(used)
    found = heads_needed(layer, fit, replace(held, groups=np.arange(200) % 5))
    assert found.chances == pytest.approx([2.0**-5] * 2)  # all five are won, and no more can be


def test_the_chance_is_corrected_for_the_number_of_heads():
    assert Needed(np.array([0.01, 0.2, 0.1]), 3).doubtful == pytest.approx(0.6)
    assert Needed(np.array([0.5, 0.9]), 2).doubtful == 1


def test_wins():
    assert chance_of_wins(10, 10) == 2.0**-10
    assert chance_of_wins(5, 10) > 0.5
