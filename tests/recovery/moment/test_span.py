"""Starts inside the span: the best of several, and an estimate that is believed only where the fit stays near it."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.recovery.moment._second_order import second_order_start
from attnlearn.recovery.moment._span import best_start, near_estimate, span_models
from tests.recovery._problems import moment, problem, signals, tokens


@pytest.fixture
def spanned(seed, rng):
    """Four heads: the problem, its signals, its moment, and the span model of four vectors on either side."""
    whole = problem(AttentionLayer.random(4, 16, rank=6, seed=seed), tokens(rng, "normal", 6000, 6, 16))
    found, shown = signals(whole, seed), moment(whole, seed)
    models = span_models(whole, found, shown.query_basis[:4], shown.value_basis[:4], rng)
    return whole, found, shown, models


def test_an_estimate_that_the_fit_does_not_share_is_not_believed(rng, spanned):
    whole, found, shown, (model, _) = spanned
    right = second_order_start(whole, found, shown, 4, rng)
    assert near_estimate(model, right)[0] is not None
    ended, a = near_estimate(model, right[::-1] + right)
    assert ended is None
    assert a.shape == right.shape
    assert near_estimate(model, None) == (None, None)


def test_random_starts_that_agree_end_the_search_and_are_judged_on_the_other_side(rng, spanned):
    *_, (model, other) = spanned
    found = best_start(model, 4, rng)
    assert found.agreed
    assert len(found.steps) == len(found.shares) + 1
    assert found.fit.share <= 1.1 * min(found.shares)
    assert other.judge(found.coordinates, found.fit.mixing) < 1.3 * found.fit.share


def test_both_sides_have_the_same_output_directions(spanned):
    *_, (model, other) = spanned
    assert model.q == other.q
    assert model.l == other.l == 4
    assert np.isfinite([model.size, other.size]).all()
