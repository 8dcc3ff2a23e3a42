"""From a wide fit to the heads that it needs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance
from attnlearn.engine import Tools
from attnlearn.recovery.wide._prune import Pruner, WideFit
from tests.recovery._problems import problem, signals, tokens


@pytest.fixture
def truth(seed) -> AttentionLayer:
    return AttentionLayer.random(2, 5, seed=seed, bias=True)


@pytest.fixture
def whole(truth, rng):
    return problem(truth, tokens(rng, "normal", 800, 4, 5))


@pytest.fixture
def wide(truth, rng) -> WideFit:
    """The truth with two needless heads: one silent, one that shares the first head's work."""
    silent, half = rng.standard_normal((1, 5, 5)), truth.w * np.array([0.5, 1])[:, None, None]
    layer = AttentionLayer(
        np.concatenate([truth.theta, silent, truth.theta[:1]]),
        np.concatenate([half, np.zeros((1, 5, 5)), half[:1]]),
        np.concatenate([truth.query_bias, np.zeros((1, 5)), truth.query_bias[:1]]),
        truth.output_bias,
    )
    return WideFit(layer, None, 1e-6, 1e-6, 9)


def pruner(whole, **options) -> Pruner:
    whole = dataclasses.replace(whole, **options)
    return Pruner(whole, signals(whole), Tools())


def test_a_start_near_the_truth_is_refined_as_far_as_is_wanted(whole, truth):
    found = pruner(whole).refined(truth.replace(theta=1.2 * truth.theta), None, 1e-3)
    assert found.select_error < 1e-2
    assert found.steps > 0
    assert not found.memorised


def test_sets_of_heads_begin_where_the_cost_of_a_drop_leaps(whole, wide):
    prunes = pruner(whole)
    sets = [sorted(kept) for kept in prunes.remaining(wide, None)]
    assert len(sets[0]) == 2
    assert sets[0] in ([0, 1], [1, 3])
    (given,) = prunes.remaining(wide, 3)
    assert len(given) == 3


def test_starts_are_the_wide_layer_without_some_heads(whole, wide):
    layer = wide.layer
    prunes = pruner(whole)
    sets = prunes.remaining(wide, None)
    found = [start for start in prunes.starts(wide) if start[1] is wide.rank]
    for kept in sets:
        assert any(np.array_equal(start.theta, layer.theta[kept]) for start, _ in found)
    (start, rank), *others = pruner(whole, num_heads=2).starts(wide)
    assert {each.num_heads for each, _ in [(start, rank), *others]} == {2}
    assert rank is None
    assert np.isin(start.w, layer.w).all()


def test_needless_heads_are_dropped_and_the_truth_is_left(whole, wide, truth):
    found = pruner(whole).without_needless(wide)
    assert found.layer.num_heads == 2
    assert distance(found.layer, truth).max < 1e-3


def test_a_fit_is_settled_once_its_heads_are_no_mixtures_of_fewer(whole, wide, truth):
    prunes = pruner(whole)
    assert not prunes.settled(wide)
    assert prunes.settled(wide._replace(layer=truth))


def test_fewer_heads_than_it_takes_are_no_answer(whole, wide):
    assert pruner(whole, num_heads=1).without_needless(wide) is None


@pytest.mark.parametrize(("error", "residual"), [(0.2, 0.2), (0.01, 1e-4)])
def test_a_fit_that_explains_little_or_was_memorised_is_not_pruned(whole, wide, error, residual):
    assert pruner(whole).without_needless(wide._replace(select_error=error, residual=residual)) is None


def test_where_attention_is_weak_a_fit_must_explain_more_to_be_pruned(whole, wide):
    strong = signals(whole)
    weak = dataclasses.replace(strong, nonlinear_share=1e-6)
    assert weak.misfit < 1e-4 < strong.misfit
    little = wide._replace(select_error=1e-4, residual=1e-4)
    assert Pruner(whole, strong, Tools()).without_needless(little) is not None
    assert Pruner(whole, weak, Tools()).without_needless(little) is None


def test_examples_are_limited_and_computed_in_float64(truth, rng):
    single = truth.astype(np.float32)
    many = problem(single, tokens(rng, "normal", 8_000, 4, 5).astype(np.float32))
    prunes = pruner(many)
    assert prunes.fit.num == 4_096
    assert prunes.fit.x.dtype == prunes.fit.y.dtype == np.float64
    assert prunes.select.x.dtype == np.float32
