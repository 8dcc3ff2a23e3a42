"""A descent on one set of examples: it ends at the truth, raises the damping when it must, and says why it ended."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.scores import Bilinear
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import cut, on_threads
from attnlearn.solve._regress import total_squares
from attnlearn.solve.refinement import RefineConfig
from attnlearn.solve.refinement._descent import Descent, damping_factor
from attnlearn.solve.refinement._trace import Trace


@pytest.fixture
def problem(rng, seed):
    layer = AttentionLayer.random(2, 4, seed=seed)
    x = rng.standard_normal((300, 5, 4))
    y = layer(x)
    start = layer.theta + 0.1 * rng.standard_normal(layer.theta.shape)
    return layer, Bilinear(start, None, layer.query_bias), cut(x, y, None), total_squares(y, None)


def descended(problem, **limits):
    _, scores, chunks, scale = problem
    descent = Descent(False, RefineConfig(**limits), Trace(None))
    with on_threads():
        return descent.fit(scores, chunks, scale, final=True), descent


def test_it_ends_at_the_truth(problem):
    found, _ = descended(problem)
    assert found.stop == "floor"
    np.testing.assert_allclose(found.scores.theta(), problem[0].theta, atol=1e-10)
    assert found.residual < 1e-13


def test_the_damping_falls_as_the_model_becomes_exact(problem):
    _, descent = descended(problem)
    dampings = [step["damping"] for step in descent.trace.steps if step["accepted"]]
    assert dampings[-1] < dampings[0] == calibration.ROUGH
    assert descent.damping < dampings[0]


def test_the_damping_rises_until_a_step_succeeds(problem):
    """Far from the truth, without any damping at first."""
    layer, _, chunks, scale = problem
    far = Bilinear(-20 * layer.theta, None, layer.query_bias)
    _, descent = descended((layer, far, chunks, scale), damping=0.0, max_steps=12)
    steps = descent.trace.steps
    failed = [place for place, step in enumerate(steps[:-1]) if not step["accepted"]]
    assert all(steps[place + 1]["damping"] > steps[place]["damping"] for place in failed)


@pytest.mark.parametrize(
    ("ratio", "wanted"), [(0.9, calibration.DIGIT), (0.5, 1.0), (0.1, calibration.FAR_MORE), (np.nan, 1.0)]
)
def test_the_damping_follows_the_promise(ratio, wanted):
    assert damping_factor(ratio) == wanted


def test_ill_conditioned_solves_ask_for_more_examples(problem, monkeypatch):
    _, scores, chunks, scale = problem
    monkeypatch.setattr(calibration, "MANY_PRODUCTS", 1)
    with on_threads():
        found = Descent(False, RefineConfig(), Trace(None)).fit(scores, chunks, scale, final=False)
    assert found.stop == "ill_conditioned"
    assert found.residual < 1


def test_more_examples_are_asked_for_again_only_where_the_last_ones_made_solves_shorter(problem, monkeypatch):
    _, scores, chunks, scale = problem
    monkeypatch.setattr(calibration, "MANY_PRODUCTS", 1)
    descent = Descent(False, RefineConfig(), Trace(None))
    with on_threads():
        asked = descent.fit(scores, chunks, scale, final=False)
        descent.asked_at = 1  # every solve takes one step at least
        unmoved = descent.fit(asked.scores, chunks, scale, final=False)
        descent.asked_at = 10_000
        again = descent.fit(scores, chunks, scale, final=False)
    assert [found.stop for found in (asked, unmoved, again)] == [
        "ill_conditioned",
        "floor",
        "ill_conditioned",
    ]


def test_limits_are_kept(problem):
    found, descent = descended(problem, max_steps=1)
    assert found.stop == "max_steps"
    assert len(descent.trace.steps) == 1
    found, _ = descended(problem, tolerance=1e-3)
    assert found.stop == "target"
