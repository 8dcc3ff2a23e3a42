"""The stochastic descent: it learns, resumes to the byte, ends in time, and its normal equations cost what dropping costs."""

from __future__ import annotations

import time

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery._problem import Problem
from attnlearn.recovery.wide._stochastic import Adam, Course, Source, descend, normal_equations
from attnlearn.recovery.wide._student import Student, residual, seen
from attnlearn.solve._drop import cheapest_drops
from attnlearn.solve._split import Split
from tests.recovery._problems import problem, signals

DIM, HEADS, RANK = 8, 4, 3


def source(rng: np.random.Generator, padded: bool = False, causal: bool = False) -> Source:
    truth = AttentionLayer.random(2, DIM, rank=RANK, scale=2.0, bias=True, causal=causal)
    x = 3 + rng.standard_normal((600, 6, DIM))
    mask = np.arange(6) < rng.integers(3, 7, size=(600, 1)) if padded else None
    whole = problem(truth, x, mask=mask)
    return Source(whole, signals(whole))


def student(rng: np.random.Generator) -> Student:
    return Student.random(HEADS, RANK, DIM, DIM, 0.5, rng)


class Kept(Tools):
    """Tools that keep every inner checkpoint, and may have one to resume from."""

    def __init__(self, given=None):
        super().__init__()
        object.__setattr__(self, "saved", [])
        object.__setattr__(self, "given", given)

    def checkpoint_inner(self, name, state):
        self.saved.append({key: _copied(value) for key, value in state.items()})

    def resume_inner(self, name):
        return self.given


def _copied(value):
    return [np.array(part) for part in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize(("padded", "causal"), [(False, False), (True, False), (False, True)])
def test_a_short_course_learns_most_of_a_small_layer(rng, padded, causal):
    here = source(rng, padded, causal)
    assert here.causal is causal
    found = descend(here, student(rng), Course(400, 2e-2, 256), Tools(), "s")
    assert found.residuals[-1] < 0.3 * found.residuals[0]


def test_outputs_have_spread_one_and_the_layer_is_that_of_the_tokens_themselves(rng):
    here = source(rng)
    assert here.x.dtype == here.y.dtype == np.float32
    assert np.var(here.y, axis=(0, 1)).mean() == pytest.approx(1, rel=1e-4)
    some, start = here.chunk(np.arange(5)), student(rng)
    said = residual(start, some, seen(start, some, here.causal).columns).reshape(5, 6, DIM) + some.y
    tokens = here.white.mean + some.x @ here.white.basis.T
    np.testing.assert_allclose(here.layer(start)(tokens), here.mean + here.spread * said, atol=1e-4)


def test_a_resumed_descent_ends_where_the_whole_one_does(rng):
    here, course = source(rng), Course(64, 1e-2, 64)
    begin = student(rng)

    def fresh() -> Student:
        return begin.like(tuple(array.copy() for array in begin.arrays))

    whole = descend(here, fresh(), course, first := Kept(), "s")
    assert first.saved[20]["step"] == 21
    resumed = descend(here, fresh(), course, Kept(first.saved[20]), "s")
    assert resumed.residuals == whole.residuals
    for one, other in zip(resumed.student.arrays, whole.student.arrays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_time_that_is_up_ends_the_descent(rng):
    here, tools = source(rng), Tools(deadline=time.monotonic() - 1)
    begin = student(rng)
    before = begin.outputs.copy()
    found = descend(here, begin, Course(10**6, 1e-2, 64), tools, "s")
    assert found.residuals == ()
    assert np.abs(found.student.outputs - before).max() < 1e-2  # one small step


def test_the_rate_rises_and_falls_and_more_directions_take_smaller_steps():
    course = Course.through(128, 512)
    rates = [course.rate_at(step) for step in range(course.steps)]
    assert np.argmax(rates) < course.steps // 10
    assert rates[-1] < 1e-4 * max(rates)
    assert max(rates) == pytest.approx(course.rate, rel=0.01)
    wide = Course.through(512, 512)
    assert (wide.steps, wide.rate) == (2 * course.steps, course.rate / 2)
    assert Course.through(128, 2048)[:2] == wide[:2]


def test_adam_moves_every_number_by_about_the_rate(rng):
    array = rng.standard_normal(50).astype(np.float32)
    before, slope = array.copy(), 100 * rng.standard_normal(50).astype(np.float32)
    Adam((array,)).step((array,), (slope,), 0.01, 1)
    np.testing.assert_allclose(array - before, -0.01 * np.sign(slope), rtol=1e-3)


@pytest.mark.parametrize("padded", [False, True])
def test_dropping_a_silent_head_costs_nothing_and_any_other_what_a_refit_leaves(rng, padded):
    here = source(rng, padded)
    begin = student(rng)
    truth = begin.like(tuple(array.copy() for array in begin.arrays))
    truth.outputs[1] = 0
    every = here.chunk(np.arange(len(here.x)))
    exact = residual(truth, every, seen(truth, every, False).columns).reshape(every.y.shape) + every.y
    here.y = exact
    normal, total = normal_equations(here, begin)
    costs = list(cheapest_drops(normal, total))
    assert 1 not in costs[0][0]
    assert costs[0][1] < 1e-2 < costs[1][1]


def test_no_more_is_held_than_there_is(rng):
    x = rng.standard_normal((30, 4, DIM))
    whole = Problem(as_examples(x, AttentionLayer.random(1, DIM)(x)), Split.make(30))
    assert len(Source(whole, signals(whole)).x) == len(whole.split.fit)
