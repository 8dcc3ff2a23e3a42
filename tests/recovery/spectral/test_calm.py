"""Calm sequences: chosen by the tokens, where tails are heavy, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance, recover
from attnlearn.engine import Tools
from attnlearn.recovery.spectral import State
from attnlearn.recovery.spectral._calm import largest_coordinates
from attnlearn.recovery.spectral._prepare import prepare
from attnlearn.recovery.spectral._state import looked_at

from ._problems import problem


def heavy(rng: np.random.Generator, num: int, k: int, d: int, degrees: float = 4.0) -> np.ndarray:
    return rng.standard_t(degrees, size=(num, k, d))


def prepared(whole):
    return prepare(whole, State(), Tools())


def test_half_of_each_side_without_the_largest_coordinates(seed, rng):
    layer = AttentionLayer.random(3, 12, seed=seed)
    whole = problem(layer, heavy(rng, 4000, 5, 12))
    state, evidence = prepared(whole)
    calm, split = looked_at(whole, state).split, whole.split
    assert evidence["calm"] == len(calm.fit) == pytest.approx(len(split.fit) / 2, rel=0.01)
    assert len(calm.select) == pytest.approx(len(split.select) / 2, rel=0.2)
    assert np.array_equal(calm.certify, split.certify)
    others = np.setdiff1d(split.fit, calm.fit)
    # Calm tokens have white coordinates of their own, in which the order may differ a little.
    assert np.median(largest_coordinates(whole, state, calm.fit)) < 0.7 * np.median(
        largest_coordinates(whole, state, others)
    )
    assert evidence["kurtosis"] < 0.5 * evidence["kurtosis_of_all"]


@pytest.mark.parametrize("kind", ["normal", "boolean", "uniform"])
def test_other_tokens_are_left_as_they_are(seed, rng, kind):
    draw = {"normal": rng.standard_normal, "boolean": lambda shape: np.sign(rng.standard_normal(shape))}
    x = draw.get(kind, rng.random)((2000, 5, 8))
    whole = problem(AttentionLayer.random(2, 8, seed=seed), x)
    state, evidence = prepared(whole)
    assert state.fit is None
    assert "calm" not in evidence
    assert looked_at(whole, state) is whole


def test_words_keep_their_rare_directions(seed, rng):
    words = np.eye(12)
    chances = np.array([0.2] * 4 + [0.025] * 8)
    x = words[rng.choice(12, p=chances, size=(4000, 5))]
    state, evidence = prepared(problem(AttentionLayer.random(2, 12, seed=seed), x))
    assert state.fit is None
    assert evidence["support_rank"] == 11


def test_calm_tokens_that_span_less_are_not_used(seed, rng):
    x = rng.standard_normal((4000, 5, 8))
    x[..., 7] = np.where(rng.random((4000, 5)) < 0.01, 30.0 + x[..., 6], 0.0)
    state, evidence = prepared(problem(AttentionLayer.random(2, 8, seed=seed), x))
    assert state.fit is None
    assert evidence["support_rank"] == 8


def test_heads_on_heavy_tails_are_recovered(seed, rng):
    layer = AttentionLayer.random(6, 20, rank=4, seed=seed, scale=3.0)
    x = heavy(rng, 8000, 6, 20)
    solution = recover(x, layer(x), seed=seed)
    assert solution.certified
    assert distance(solution.layer, layer).max < 1e-8
