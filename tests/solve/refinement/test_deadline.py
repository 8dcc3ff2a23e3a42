"""A deadline ends a refinement between steps and inside inner solves, with the best layer so far."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve import _deadline
from attnlearn.solve._deadline import passed
from attnlearn.solve.refinement import RefineConfig, refine


@pytest.fixture
def problem(rng, seed):
    layer = AttentionLayer.random(2, 6, seed=seed)
    x = rng.standard_normal((300, 5, 6))
    start = layer.replace(theta=layer.theta + 0.1 * rng.standard_normal(layer.theta.shape))
    return start, x, layer(x)


@pytest.fixture
def ticks(monkeypatch):
    """A clock that moves on by one whenever it is looked at."""
    counter = itertools.count()
    monkeypatch.setattr(_deadline, "clock", lambda: next(counter))


def test_no_deadline_never_passes(ticks):
    assert not passed(None)
    assert [passed(2), passed(2), passed(2)] == [False, False, True]


def test_a_deadline_in_the_past_returns_the_start_with_the_best_outputs(problem):
    start, x, y = problem
    found = refine(start, x, y, config=RefineConfig(deadline=0.0))
    assert found.stop == "deadline"
    assert found.steps == []
    np.testing.assert_allclose(found.layer.theta, start.theta, atol=1e-6)
    assert 0 < found.residual < 1


def test_a_deadline_far_away_changes_nothing(problem):
    start, x, y = problem
    free, limited = (refine(start, x, y, config=RefineConfig(deadline=late)) for late in (None, np.inf))
    assert free.stop == limited.stop == "floor"
    assert free.layer.theta.tobytes() == limited.layer.theta.tobytes()


def test_a_deadline_inside_an_inner_solve_keeps_the_last_accepted_step(problem, ticks):
    start, x, y = problem
    residuals = []
    for most in (1, 4, 12, 40):
        found = refine(start, x, y, config=RefineConfig(deadline=most * 10 + _deadline.clock()))
        residuals.append(found.residual)
        if found.stop != "deadline":
            assert found.stop == "floor"
        accepted = [step["residual"] for step in found.steps if step["accepted"]]
        if accepted and found.stop == "deadline":
            assert found.residual <= 1.01 * accepted[-1]
    assert residuals == sorted(residuals, reverse=True)
    assert residuals[0] > 100 * residuals[-1]


def test_the_clock_is_looked_at_after_every_product(problem, monkeypatch):
    start, x, y = problem
    looks = []
    monkeypatch.setattr(_deadline, "clock", lambda: looks.append(1) or 0)
    found = refine(start, x, y, config=RefineConfig(deadline=1.0))
    assert found.stop == "floor"
    assert len(looks) > sum(step["inner"] for step in found.steps)
