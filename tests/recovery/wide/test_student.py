"""A student: its slope is the derivative of its squared error, padding and causal masks included, and it is the layer it says."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.recovery.wide._student import Student, residual, seen, slope
from attnlearn.solve._chunks import Chunk

HEADS, RANK, DIM, OUT = 3, 2, 5, 4


def chunk(rng: np.random.Generator, padded: bool) -> Chunk:
    """Four sequences of six tokens in float64; the last tokens of each are padded, or none."""
    x, y = rng.standard_normal((4, 6, DIM)), rng.standard_normal((4, 6, OUT))
    if not padded:
        return Chunk(x, y, None, np.arange(4))
    keep = (np.arange(6) < rng.integers(3, 6, size=(4, 1))).astype(float)
    return Chunk(x * keep[..., None], y * keep[..., None], keep, np.arange(4))


def double(rng: np.random.Generator) -> Student:
    student = Student.random(HEADS, RANK, DIM, OUT, 1.0, rng)
    double = student._replace(scores=student.scores.astype(float))
    return double.like(tuple(array.astype(float) + 0.1 for array in student.arrays))


def squares(student: Student, some: Chunk, causal: bool) -> float:
    return float(np.sum(residual(student, some, seen(student, some, causal).columns) ** 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_the_slope_is_half_the_derivative_of_the_squares(rng, padded, causal):
    some, student = chunk(rng, padded), double(rng)
    *slopes, total = slope(student, some, causal)
    assert float(total) == pytest.approx(squares(student, some, causal))
    for place, found in enumerate(slopes):
        arrays = [array.copy() for array in student.arrays]
        direction = rng.standard_normal(found.shape)
        sides = []
        for step in (1e-5, -1e-5):
            moved = [*arrays[:place], arrays[place] + step * direction, *arrays[place + 1 :]]
            sides.append(squares(student.like(tuple(moved)), some, causal))
        assert 2 * np.vdot(found, direction) == pytest.approx(
            (sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-6
        )


@pytest.mark.parametrize("causal", [False, True])
def test_a_student_is_the_layer_of_its_parameters(rng, causal):
    some, student = chunk(rng, padded=True), double(rng)
    mean, spread = rng.standard_normal(OUT), 3.0
    layer = student.layer(mean, spread, causal)
    said = residual(student, some, seen(student, some, causal).columns) + some.y.reshape(-1, OUT)
    real = some.keep.astype(bool)
    np.testing.assert_allclose(
        layer(some.x, real)[real], mean + spread * said.reshape(4, 6, OUT)[real], atol=1e-12
    )


def test_random_scores_have_the_size_that_is_asked_for(rng):
    student = Student.random(4, 8, 100, OUT, 0.5, rng)
    x = rng.standard_normal((20, 30, 100)).astype(np.float32)
    scores = np.einsum("nad,mde,nbe->mnab", x, student.scores.theta(), x, optimize=True)
    assert 0.4 < scores.std() < 0.6
    assert all(array.dtype == np.float32 for array in student.arrays)
