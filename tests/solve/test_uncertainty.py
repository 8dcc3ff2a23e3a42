"""Standard errors: proportional to the noise, smaller with more examples, and those that refitting shows."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._uncertainty import standard_errors
from attnlearn.solve.refinement import refine


@pytest.fixture
def problem(rng, seed):
    return AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((600, 5, 4))


def test_errors_are_proportional_to_the_noise(problem):
    layer, x = problem
    one, two = (standard_errors(layer, x, noise) for noise in (1e-3, 2e-3))
    np.testing.assert_allclose(two.theta, 2 * one.theta)
    np.testing.assert_allclose(two.output_bias, 2 * one.output_bias)
    assert not standard_errors(layer, x, 0.0).w.any()


def test_fewer_examples_tell_less(problem):
    layer, x = problem
    few, many = standard_errors(layer, x[:150], 1e-3, draws=8), standard_errors(layer, x, 1e-3, draws=8)
    assert (few.examples, many.examples) == (150, 600)
    np.testing.assert_allclose(few.theta, 2 * many.theta, rtol=0.5)


def test_refitting_shows_them(problem, rng):
    layer, x = problem
    expected = standard_errors(layer, x, 1e-3, draws=8)
    seen = []
    for _ in range(6):
        y = layer(x)
        found = refine(layer, x, y + 1e-3 * rng.standard_normal(y.shape)).layer
        seen.append(np.sum((found.theta - layer.theta) ** 2, axis=(1, 2)))
    np.testing.assert_allclose(np.sqrt(np.mean(seen, axis=0)), expected.theta, rtol=0.5)


@pytest.mark.parametrize(("change", "message"), [
    ({"noise": -1.0}, "noise: must be a finite number >= 0"),
    ({"draws": 0}, "draws: must be at least 1"),
])  # fmt: skip
def test_bad_input_is_named(problem, change, message):
    layer, x = problem
    with pytest.raises(ValueError, match=message):
        standard_errors(layer, x, **({"noise": 1e-3} | change))
