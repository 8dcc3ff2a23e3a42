"""Signals: what is measured before anything is proposed, of all sequences or of those without outliers."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, distance, recover
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery._problem import Need, Problem
from attnlearn.recovery._signals import (
    largest_coordinates,
    measure,
    sequences_wanted,
    without_outliers,
)

from ._problems import made_problem, made_signals, problem, signals, tokens


def heavy(rng: np.random.Generator, num: int, k: int, d: int, degrees: float = 4.0) -> np.ndarray:
    return rng.standard_t(degrees, size=(num, k, d))


def test_half_of_each_side_without_the_largest_coordinates(seed, rng):
    whole = problem(AttentionLayer.random(3, 12, seed=seed), heavy(rng, 4000, 5, 12))
    found, split = signals(whole), whole.split
    assert found.heavy_tails
    assert found.scarce
    assert found.evidence()["sequences_read"] == len(found.fit) == pytest.approx(len(split.fit) / 2, rel=0.01)
    assert len(found.select) == pytest.approx(len(split.select) / 2, rel=0.2)
    assert np.isin(found.fit, split.fit).all()
    assert np.isin(found.select, split.select).all()
    others = np.setdiff1d(split.fit, found.fit)
    # Calm tokens have white coordinates of their own, in which the order may differ a little.
    assert np.median(largest_coordinates(whole, found.white, found.fit)) < 0.7 * np.median(
        largest_coordinates(whole, found.white, others)
    )
    fourth = ((whole.examples.take(split.fit).x @ found.white.inverse.T) ** 4).mean() - 3
    assert found.kurtosis.mean() < 0.5 * fourth


@pytest.mark.parametrize("kind", ["normal", "boolean", "uniform"])
def test_other_tokens_are_left_as_they_are(seed, rng, kind):
    draw = {"normal": rng.standard_normal, "boolean": lambda shape: np.sign(rng.standard_normal(shape))}
    x = draw.get(kind, rng.random)((2000, 5, 8))
    whole = problem(AttentionLayer.random(2, 8, seed=seed), x)
    found = signals(whole)
    assert not found.heavy_tails
    assert found.modelled
    assert np.array_equal(found.fit, whole.split.fit)
    assert np.array_equal(found.select, whole.split.select)


def test_words_keep_their_rare_directions(seed, rng):
    words = np.eye(12)
    chances = np.array([0.2] * 4 + [0.025] * 8)
    x = words[rng.choice(12, p=chances, size=(4000, 5))]
    found = signals(problem(AttentionLayer.random(2, 12, seed=seed), x))
    assert not found.modelled
    assert not found.heavy_tails
    assert found.evidence()["support_rank"] == found.directions == 11


def test_calm_tokens_that_span_less_are_not_used(seed, rng):
    x = rng.standard_normal((4000, 5, 8))
    x[..., 7] = np.where(rng.random((4000, 5)) < 0.01, 30.0 + x[..., 6], 0.0)
    whole = problem(AttentionLayer.random(2, 8, seed=seed), x)
    found = signals(whole)
    assert not found.heavy_tails
    assert len(found.fit) == len(whole.split.fit)
    assert found.directions == 8


def test_outliers_are_those_above_the_median_of_the_fit_side(seed, rng):
    whole = problem(AttentionLayer.random(2, 6, seed=seed), rng.standard_normal((400, 4, 6)))
    found = signals(whole)
    fit, select = without_outliers(whole, found)
    bound = np.median(largest_coordinates(whole, found.white, whole.split.fit))
    assert largest_coordinates(whole, found.white, fit).max() <= bound
    assert largest_coordinates(whole, found.white, select).max() <= bound
    assert largest_coordinates(whole, found.white, np.setdiff1d(whole.split.select, select)).min() > bound


def test_padding_is_no_outlier(rng):
    x = rng.standard_normal((400, 4, 6))
    x[:, 3] = 1e6
    mask = np.broadcast_to(np.arange(4) < 3, (400, 4)).copy()
    whole = problem(AttentionLayer.random(2, 6), x, mask=mask)
    found = signals(whole)
    assert not found.heavy_tails
    assert largest_coordinates(whole, found.white, whole.split.fit).max() < 10


def test_words_of_a_list_repeat_and_signs_are_modelled(rng):
    num, k, d = 700, 5, 6
    own = rng.standard_normal((num, k, d)) + 2 * rng.standard_normal((k, d))
    for x, repeated, modelled in (
        (rng.standard_normal((30, d))[rng.integers(30, size=(num, k))], True, False),
        (rng.choice([-1.0, 1.0], (num, k, d)), False, True),
        (rng.standard_normal((num, k, d)), False, True),
        (own, False, False),
    ):
        found = signals(problem(AttentionLayer.random(2, d, seed=1), x))
        assert found.repeated is repeated
        assert found.modelled is modelled


@pytest.mark.parametrize("causal", [False, True])
def test_causal_mask_is_recognised(rng, causal):
    layer = AttentionLayer.random(2, 6, bias=True, seed=2, causal=causal)
    found = signals(problem(layer, tokens(rng, "normal", 600, 5, 6)))
    assert found.causal is causal
    assert found.evidence()["causal"] is causal


def test_a_causal_mask_that_is_given_is_believed(rng):
    whole = problem(AttentionLayer.random(2, 6, seed=2), tokens(rng, "normal", 600, 5, 6), causal=True)
    assert signals(whole).causal is True


def test_dependence_and_kurtosis_are_measured_only_where_they_are(rng):
    layer = AttentionLayer.random(2, 6, seed=0)
    plain = signals(problem(layer, tokens(rng, "normal", 3000, 5, 6)))
    assert np.array_equal(plain.position_correlation, np.eye(5))
    assert not plain.kurtosis.any()
    assert not plain.position_mean.any()
    assert not plain.dependent
    boolean = signals(problem(layer, tokens(rng, "boolean", 3000, 5, 6)))
    assert np.abs(boolean.kurtosis + 2).max() < 0.05
    correlated = signals(problem(layer, tokens(rng, "correlated", 3000, 5, 6)))
    wanted = 0.7 ** np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    assert np.abs(correlated.position_correlation - wanted).max() < 0.05
    assert correlated.dependent


def test_what_cannot_be_learned_is_a_need(rng):
    x = tokens(rng, "normal", 300, 4, 5)
    same, line = np.repeat(x[:, :1], 4, axis=1), x[..., :1] * np.ones(5)
    flat, layer = AttentionLayer.random(2, 5, scale=0.0), AttentionLayer.random(2, 5)
    for whole, outcome in (
        (problem(flat, x), Outcome.ATTENTION_TOO_WEAK),
        (problem(layer, same), Outcome.TOKENS_DEGENERATE),
        (problem(layer, line), Outcome.TOKENS_DEGENERATE),
    ):
        found = measure(whole, Tools())
        assert isinstance(found, Need)
        assert found.outcome is outcome
        assert found.examples is None
        assert found.evidence["tokens"] == whole.examples.tokens


@pytest.mark.parametrize(
    ("changes", "modelled", "scarce"),
    [
        ({}, True, False),
        ({"repeated": True}, False, False),
        ({"skewness": np.array([0.0, 0, 0, 0, -0.6])}, False, False),
        ({"skewness": np.array([0.0, 0, 0, 0, -0.4])}, True, False),
        ({"position_mean": np.ones((4, 5))}, False, False),
        ({"position_correlation": np.eye(4) + 0.1}, False, False),
        ({"heavy_tails": True}, True, True),
        ({"equations_per_unknown": 20.0}, True, True),
    ],
)
def test_what_the_signals_say_of_the_moment(changes, modelled, scarce):
    made = made_signals(**changes)
    assert made.modelled is modelled
    assert made.scarce is scarce


def test_statistics_rest_on_some_thousands_of_many_sequences(rng):
    few, many = made_problem(num=400), made_problem(num=40_000)
    assert sequences_wanted(few.examples) == sequences_wanted(many.examples) >= 4_096
    x = rng.standard_normal((20_000, 4, 5))
    found = signals(problem(AttentionLayer.random(2, 5), x))
    assert found.looked_at < 10_000
    assert len(found.fit) > 14_000


def test_equations_are_counted_for_a_usual_number_of_heads(rng):
    whole = problem(AttentionLayer.random(2, 5), tokens(rng, "normal", 400, 4, 5))
    unknown = 8 * (25 + 5 + 25) + 5
    assert signals(whole).equations_per_unknown == pytest.approx(300 * 4 * 5 / unknown)


def test_white_coordinates_and_support_are_those_of_the_tokens(rng):
    layer = AttentionLayer.random(3, 5, bias=True, seed=1)
    x = tokens(rng, "normal", 400, 4, 5) @ rng.standard_normal((5, 5)) + rng.standard_normal(5)
    white = signals(problem(layer, x)).white
    inside = white.enter(layer.parameters)
    z = (x - white.mean) @ white.inverse.T
    assert np.abs(AttentionLayer(*inside)(z) - layer(x)).max() < 1e-12
    for there, back in zip(layer.parameters, white.leave(inside), strict=True):
        assert np.abs(there - back).max() < 1e-12


def test_the_certify_side_is_not_read(rng):
    x = tokens(rng, "normal", 800, 5, 6)
    whole = problem(AttentionLayer.random(2, 6, seed=0), x)
    moved = x.copy()
    moved[whole.split.certify] = 1e3
    other = Problem(as_examples(moved, whole.examples.take(np.arange(800)).y), whole.split)
    assert signals(whole).evidence() == signals(other).evidence()


def test_heads_on_heavy_tails_are_recovered(seed, rng):
    layer = AttentionLayer.random(6, 20, rank=4, seed=seed, scale=3.0)
    x = heavy(rng, 8000, 6, 20)
    solution = recover(x, layer(x), seed=seed)
    assert solution.certified
    assert distance(solution.layer, layer).max < 1e-8
