"""Planted heads: limits follow the noise, heads beyond the limit are seen, halves of a head stand for the head."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._attention import Parameters
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve.noise._planted import PLANTED, SIZES, _least, detection_limits, split_head
from attnlearn.solve.noise._test_of_fit import TestOfFit
from attnlearn.solve.refinement import RefineConfig, refine

from ._problems import TRUTH, fitted


def test_limits_grow_with_the_noise(rng):
    quiet, loud = (
        detection_limits(layer, used.first(500), example_scale(used), judged=200)
        for layer, used in (fitted(rng, level=level) for level in (1e-3, 0.1))
    )
    assert 0 < quiet.visible < 0.1 * loud.visible
    assert 0 < quiet.apart < 0.5 * loud.apart


def test_a_true_third_head_is_seen_beyond_the_limit_and_not_far_below(rng):
    layer, used = fitted(rng, level=0.1)
    scale = example_scale(used)
    limit = detection_limits(layer, used, scale, judged=200).visible
    head = AttentionLayer.random(1, 5, seed=8)(used.x)
    head *= scale / np.median(np.linalg.norm(head, axis=(1, 2)))
    for size, seen in ((5 * limit, True), (0.05 * limit, False)):
        more = Batch(used.x, used.y + size * head)
        refitted = refine(layer, more.x, more.y, config=RefineConfig(equations_per_unknown=np.inf)).layer
        assert TestOfFit(refitted, more)(more.y - refitted(more.x)).structured == seen


def test_so_many_plants_show_the_rate_that_is_claimed():
    assert 0.86**PLANTED < 0.05


def test_two_halves_of_a_head_are_the_head_where_they_are_not_apart(rng):
    one = Parameters(TRUTH.theta[:1], TRUTH.w[:1], rng.standard_normal((1, 5)), np.zeros(5))
    x, away = rng.standard_normal((7, 4, 5)), rng.standard_normal((1, 5, 5))
    together, apart = (AttentionLayer(*split_head(one, size * away)) for size in (0.0, 0.5))
    np.testing.assert_allclose(together(x), AttentionLayer(*one)(x), atol=1e-12)
    np.testing.assert_allclose(apart.theta[0] - apart.theta[1], away[0])
    np.testing.assert_allclose(apart.theta.mean(axis=0), one.theta[0])


@pytest.mark.parametrize("limit", [3e-4, 0.7, 900.0])
def test_the_least_size_to_a_tenth(limit):
    assert limit <= _least(lambda size: size >= limit) <= 1.1 * limit


def test_what_is_never_seen_has_no_limit():
    assert _least(lambda size: size > SIZES[1]) == np.inf
