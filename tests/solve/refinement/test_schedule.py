"""The schedule: few examples first, more when fresh ones are not fitted, all of them beside noise."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.scores import Bilinear
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import on_threads
from attnlearn.solve._white import whitening
from attnlearn.solve.refinement import RefineConfig
from attnlearn.solve.refinement._descent import Descended, Descent
from attnlearn.solve.refinement._schedule import Schedule
from attnlearn.solve.refinement._trace import Trace


class Scripted(Descent):
    """A descent that ends as it is told, and notes the examples it was given."""

    def __init__(self, config, ends):
        super().__init__(False, config, Trace(None))
        self.ends, self.seen, self.real = (
            iter(ends),
            [],
            Descent(False, RefineConfig(max_steps=0), Trace(None)),
        )

    def fit(self, scores, chunks, scale, final):
        self.seen.append((sum(len(chunk.x) for chunk in chunks), final))
        stop, residual = next(self.ends)
        fitted = self.real.fit(scores, chunks, scale, final)
        return Descended(fitted.scores, fitted.fit, residual, stop)


def scheduled(ends, number=16_000, scale=1.0, **limits):
    layer = AttentionLayer.random(1, 2, scale=scale, seed=0)
    x = np.random.default_rng(0).standard_normal((number, 4, 2))
    noisy = layer(x) + np.random.default_rng(1).standard_normal(x.shape)
    descent = Scripted(RefineConfig(**limits), ends)
    white = whitening(x, None)
    schedule = Schedule(white, x, noisy, None, descent)
    inside = white.enter(layer.parameters)
    with on_threads():
        found = schedule.descend(Bilinear(inside.theta, None, inside.query_bias))
    return found, descent.seen, schedule, layer


def run(ends, **how):
    return scheduled(ends, **how)[:2]


FIRST = calibration.LEAST_ROWS // 4


def test_fresh_examples_that_are_fitted_end_it():
    found, seen = run([("floor", 0.5)])
    assert seen == [(FIRST, False)]
    assert found.residual > 0.5  # on fresh examples, where the noise is


def test_fresh_examples_that_are_not_fitted_ask_for_more():
    _, seen = run([("floor", 1e-9), ("floor", 1e-9)])
    assert seen == [(FIRST, False), (16_000, True)]


@pytest.mark.parametrize(("average", "wanted"), [(True, [FIRST, 16_000]), (False, [FIRST])])
def test_noise_is_averaged_if_asked_for(average, wanted):
    _, seen = run([("noise", 0.9), ("noise", 0.9)], average=average)
    assert [number for number, _ in seen] == wanted


def test_ill_conditioned_solves_double_the_examples():
    _, seen = run([("ill_conditioned", 0.9), ("floor", 0.9)])
    assert [number for number, _ in seen] == [FIRST, 2 * FIRST]


def test_a_deadline_ends_it_at_once():
    found, seen = run([("deadline", 1e-9)])
    assert found.stop == "deadline"
    assert len(seen) == 1


def test_limits_on_examples_are_kept():
    _, seen = run([("noise", 0.9)], max_examples=300)
    assert seen == [(300, True)]
    _, seen = run([("target", 0.9)], stop_at_tolerance=True, tolerance=2.0)
    assert seen == [(calibration.CHUNK_ROWS // 4, False)]


def test_ill_conditioned_solves_of_a_saturated_head_take_more_telling_examples_first():
    _, seen, schedule, layer = scheduled([("ill_conditioned", 0.9)] * 2 + [("floor", 0.9)], scale=100.0)
    assert [number for number, _ in seen] == [FIRST, FIRST, 2 * FIRST]
    assert sorted(schedule.order) == list(range(16_000))
    squares = np.sum(layer.patterns(schedule.x[schedule.order]) ** 2, axis=(1, 2, 3))
    assert squares[:FIRST].mean() < squares.mean() - 0.1 * squares.std()
