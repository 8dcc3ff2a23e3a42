"""Conjugate gradients solve the damped system, promise what the linear model gives, and end at a deadline."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.scores import Bilinear
from attnlearn.solve._chunks import cut
from attnlearn.solve._linearize import linearize
from attnlearn.solve._precondition import precondition
from attnlearn.solve._regress import eliminate
from attnlearn.solve._step import Matrix, gauss_newton_step, projected_product, solve_normal, written_out


@pytest.fixture
def system(rng, seed):
    return system_in(np.float64, rng, seed)


def system_in(dtype, rng, seed):
    layer = AttentionLayer.random(2, 4, seed=seed).astype(dtype)
    x = rng.standard_normal((300, 4, 4)).astype(dtype)
    moved = layer.theta + 0.1 * rng.standard_normal(layer.theta.shape).astype(dtype)
    scores, chunks = Bilinear(moved, None, layer.query_bias), cut(x, layer(x), None)
    fit = eliminate(scores, chunks, False)
    at = linearize(scores, fit.linear, fit.factor, chunks, False)
    return at, precondition(at), fit


@pytest.mark.parametrize("damping", [0.0, 1.0])
def test_the_system_is_solved(system, rng, damping):
    at, by, _ = system
    right = rng.standard_normal(at.scores.flat().size)
    found = solve_normal(at, by, right, damping, 1e-8, 400)
    image, follow = projected_product(at, by, found.t)
    assert np.linalg.norm(image + damping * found.t - right) <= 1e-6 * np.linalg.norm(right)
    np.testing.assert_allclose(found.follow, follow, atol=1e-6)


def test_the_promise_is_the_decrease_of_the_linear_model(system):
    at, by, fit = system
    norm = fit.cost**0.5
    step = gauss_newton_step(at, by, [part / norm for part in fit.rest], 1e-3, 1e-8, 400)
    moved = at.scores.shaped(at.scores.flat() + 1e-3 * norm * step.scores.flat())
    won = 1 - eliminate(moved, at.chunks, False).cost / fit.cost
    assert 0 < step.predicted <= 0.5
    assert won == pytest.approx(2 * 1e-3 * 2 * step.predicted, rel=0.05)  # the slope of t (2 - t) at zero


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("damping", [1e-3, 0.1, 30.0])
def test_the_space_of_a_solve_solves_for_every_higher_damping(rng, seed, dtype, damping, monkeypatch):
    at, by, fit = system_in(dtype, rng, seed)
    rest = [part / fit.cost**0.5 for part in fit.rest]
    accuracy = 1e-10 if dtype == np.float64 else 1e-4
    first = gauss_newton_step(at, by, rest, 1e-3, accuracy, 400)
    fresh = gauss_newton_step(at, by, rest, damping, accuracy, 400)
    monkeypatch.setattr("attnlearn.solve._step.projected_product", None)  # no further product
    again = gauss_newton_step(at, by, rest, damping, accuracy, 400, space=first.space)
    assert again.inner == 0
    assert again.space is first.space
    assert again.scores.flat().dtype == dtype
    for one, other in ((again.scores.flat(), fresh.scores.flat()), (again.linear, fresh.linear)):
        assert np.linalg.norm(one - other) <= 30 * accuracy * np.linalg.norm(other)
    assert again.predicted == pytest.approx(fresh.predicted, rel=30 * accuracy)


def test_no_space_is_kept_where_nothing_was_solved(system):
    at, by, fit = system
    nothing = [0 * part for part in fit.rest]
    assert gauss_newton_step(at, by, nothing, 1e-3, 1e-8, 400).space is None


def test_no_more_steps_than_allowed_and_none_after_the_deadline(system, rng):
    at, by, _ = system
    right = rng.standard_normal(at.scores.flat().size)
    assert solve_normal(at, by, right, 0.0, 1e-12, 3).inner == 3
    late = solve_normal(at, by, right, 0.0, 1e-12, 400, deadline=0.0)
    assert late.inner == 0
    assert not late.t.any()


@pytest.mark.parametrize("damping", [1e-3, 1.0])
def test_the_step_of_the_matrix_written_out_is_that_of_conjugate_gradients(system, damping):
    at, by, fit = system
    rest = [part / fit.cost**0.5 for part in fit.rest]
    matrix = written_out(at, by, at.scores.flat().size)
    by_matrix = gauss_newton_step(at, by, rest, damping, 1e-14, 1000, matrix=matrix)
    by_gradients = gauss_newton_step(at, by, rest, damping, 1e-14, 1000)
    one, other = by_matrix.scores.flat(), by_gradients.scores.flat()
    assert np.linalg.norm(one - other) <= 1e-10 * np.linalg.norm(other)
    np.testing.assert_allclose(by_matrix.linear, by_gradients.linear, atol=1e-10)
    assert by_matrix.predicted == pytest.approx(by_gradients.predicted, rel=1e-10)
    assert by_matrix.inner == len(one)


def test_the_matrix_written_out_is_the_matrix(system, rng):
    at, by, _ = system
    size = at.scores.flat().size
    matrix = written_out(at, by, size)
    assert isinstance(matrix, Matrix)
    t = rng.standard_normal(size)
    image, follow = projected_product(at, by, t)
    np.testing.assert_allclose(matrix.vectors @ (matrix.values * (matrix.vectors.T @ t)), image, atol=1e-10)
    np.testing.assert_allclose(np.tensordot(t, matrix.follow, axes=1), follow, atol=1e-10)
    assert matrix.values.min() > 0
    for damping in (0.0, 0.1):
        found = matrix.solve(image + damping * t, damping)
        assert np.linalg.norm(found.t - t) <= 1e-6 * np.linalg.norm(t)


def test_the_matrix_is_written_out_in_float64_for_few_unknowns_while_there_is_time(system, rng, seed):
    at, by, _ = system
    size = at.scores.flat().size
    assert written_out(at, by, size - 1) is None
    assert written_out(at, by, size, deadline=0.0) is None
    assert written_out(at, by, size) is not None
    single, by_single, _ = system_in(np.float32, rng, seed)
    assert single.chunks.dtype == np.float32
    assert written_out(single, by_single, size) is None
