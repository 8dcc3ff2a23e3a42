"""Growing: which fit a further head is added to, how often, and when no more is tried."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery._growth import growth, shows_a_head, with_random_head
from attnlearn.recovery._problem import Weights
from attnlearn.solve._white import Whitening

from ._problems import made_fit, made_signals, problem, signals, tokens

NOT_LOWER = "another head does not lower the error"


@pytest.mark.parametrize(
    ("errors", "found", "start", "over"),
    [
        # The first error is that of the fit without further heads; `found` is the place of the fit to go on from.
        ([0.1], 0, 0, None),
        ([0.1, 0.04], 1, 0, None),  # much better at once
        ([0.1, 0.087], 0, 1, None),  # a little better: another start first
        ([0.1, 0.2], 0, 1, None),
        ([0.1, 0.2, 0.2], 0, 0, NOT_LOWER),
        ([0.1, 0.2, 0.087], 2, 0, None),  # the second start is better
        ([0.1, 0.087, 0.095], 1, 0, None),
        ([0.1, 0.087, 0.095, 0.04], 3, 0, None),  # two heads pay where one hardly did
        ([0.1, 0.087, 0.095, 0.086, 0.09], 1, 0, NOT_LOWER),
        ([0.1, 0.04, 0.035, 0.034], 3, 0, None),  # the better of two starts
        ([0.1, 0.04, 0.016, 0.006], 3, 0, None),  # much better three times
        ([0.1, 0.0899, 0.095, 0.0809, 0.09, 0.0728, 0.08], 5, 0, None),  # a tenth each time is enough
        ([0.1, 0.0899, 0.095, 0.0809, 0.09, 0.0729, 0.08], 3, 0, NOT_LOWER),  # and a little less is not
        ([400.0, 300.0], 0, 1, None),  # worse than no fit, before and after
        ([400.0, 300.0, 250.0], 0, 0, NOT_LOWER),
        ([400.0, 0.5], 1, 0, None),
    ],
)
def test_where_growing_stands(errors, found, start, over):
    fits = [made_fit(error=error, heads=1 + place) for place, error in enumerate(errors)]
    now = growth(fits[0], fits[1:])
    assert [fit is now.found for fit in fits].index(True) == found
    assert (now.start, now.over) == (start, over)


@pytest.fixture
def seen(seed, rng):
    """Three heads, and the fit of two of them: what is left is a head."""
    truth = AttentionLayer.random(3, 6, seed=seed)
    whole = problem(truth, tokens(rng, "normal", 4000, 5, 6))
    return whole, signals(whole), truth


def test_what_a_fit_leaves_shows_the_head_that_is_missing(seen):
    whole, found, truth = seen
    two = AttentionLayer(truth.theta[:2], truth.w[:2])
    assert shows_a_head(whole, found, made_fit(weights=Weights.of(two)), Tools())


def test_what_noise_leaves_shows_none(seen, rng):
    whole, found, truth = seen
    moved = truth.replace(output_bias=truth.output_bias + 0.1)
    assert not shows_a_head(whole, found, made_fit(weights=Weights.of(moved)), Tools())


def test_a_random_head_has_scores_and_no_values_and_leaves_the_others(seen, rng):
    _, found, truth = seen
    fit = made_fit(weights=Weights.of(truth.astype(np.float32)))
    more = with_random_head(found, fit, rng)
    assert more.num_heads == 4
    assert more.dtype == np.float32
    assert np.array_equal(more.theta[:3], fit.layer.theta)
    assert not more.w[3].any()
    white = found.white.enter(more.astype(np.float64).parameters)
    assert 0.2 < np.linalg.norm(white.theta[3]) < 4


def test_heads_of_fewer_directions_stay_inside_the_support(rng):
    inside = made_signals(3, white=Whitening(np.zeros(5), np.eye(5)[:, :3], np.eye(5)[:3]))
    more = with_random_head(inside, made_fit(), rng)
    assert not more.theta[-1][3:].any()
    assert not more.theta[-1][:, 3:].any()
