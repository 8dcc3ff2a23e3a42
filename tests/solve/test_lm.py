"""Levenberg-Marquardt on many small problems: each ends where it would end alone, and none waits for another."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.solve._lm import MOST, Stopping, descend


class Curves:
    """y = exp(-a t) + c at times t, one curve per problem; counts what was evaluated."""

    def __init__(self, y: np.ndarray, t: np.ndarray) -> None:
        self.y, self.t, self.evaluated = y, t, np.zeros(len(y), int)

    def evaluate(self, unknowns, which):
        np.add.at(self.evaluated, which, 1)
        decay = np.exp(-unknowns[:, :1] * self.t)
        rest = self.y[which] - decay - unknowns[:, 1:]
        return np.sum(rest**2, axis=1), rest, np.stack([-self.t * decay, np.ones_like(decay)], 2)

    def step(self, fit, damping):
        _, rest, slopes = fit
        normal = np.swapaxes(slopes, 1, 2) @ slopes
        normal = normal + damping[:, None, None] * np.einsum("bkk->bk", normal)[:, None] * np.eye(2)
        return np.linalg.solve(normal, np.swapaxes(slopes, 1, 2) @ rest[..., None])[..., 0]


@pytest.fixture
def truth(rng):
    return np.stack([rng.uniform(0.5, 2.0, 7), rng.standard_normal(7)], 1)


@pytest.fixture
def curves(truth):
    t = np.linspace(0.1, 3.0, 9)
    return Curves(np.exp(-truth[:, :1] * t) + truth[:, 1:], t)


STOP = Stopping(steps=60, gain=1e-2)


def test_every_problem_reaches_its_optimum(curves, truth):
    found = descend(curves, np.tile([1.0, 0.0], (7, 1)), 1e-3, STOP)
    assert np.abs(found.unknowns - truth).max() < 1e-10
    assert found.fit[0].max() < 1e-20


def test_the_batch_finds_what_each_finds_alone(curves, truth):
    start = np.tile([1.0, 0.0], (7, 1))
    together = descend(curves, start, 1e-3, STOP).unknowns
    for one in range(7):
        alone = descend(Curves(curves.y[[one]], curves.t), start[[one]], 1e-3, STOP).unknowns
        np.testing.assert_allclose(alone[0], together[one], rtol=1e-12)


def test_a_problem_that_is_solved_is_left_alone(curves, truth):
    start = np.tile([1.0, 0.0], (7, 1))
    start[0] = truth[0]
    descend(curves, start, 1e-3, STOP)
    assert curves.evaluated[0] < curves.evaluated[1:].min() + 20
    assert curves.evaluated[1:].max() <= STOP.steps + 1


def test_no_step_that_does_not_help_is_taken(curves, truth, rng):
    noisy = Curves(curves.y + 0.1 * rng.standard_normal(curves.y.shape), curves.t)
    start = np.tile([1.0, 0.0], (7, 1))
    before = noisy.evaluate(start, np.arange(7))[0]
    costs = [descend(noisy, start, 1e-3, STOP._replace(steps=steps)).fit[0] for steps in (1, 2, 4, 8, 60)]
    for earlier, later in zip([before, *costs], costs):
        assert np.all(later <= earlier)


def test_the_first_residual_that_is_enough_ends_all(curves):
    found = descend(curves, np.tile([1.0, 0.0], (7, 1)), 1e-3, STOP._replace(enough=1e-3))
    assert found.steps < 10
    assert found.fit[0].min() <= 1e-3


def test_steps_that_are_not_finite_are_refused(curves):
    class Broken(Curves):
        def step(self, fit, damping):
            return np.full((len(damping), 2), np.nan)

    start = np.tile([1.0, 0.0], (7, 1))
    found = descend(Broken(curves.y, curves.t), start, 1e-3, Stopping(steps=1000, gain=1e-2))
    assert np.array_equal(found.unknowns, start)
    assert found.steps < 1 + np.log(MOST / 1e-10) / np.log(8) + 2


def test_nothing_to_solve_is_no_work(curves):
    assert descend(curves, np.zeros((0, 2)), 1e-3, STOP).steps == 0
