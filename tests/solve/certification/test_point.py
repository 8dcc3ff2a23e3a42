"""A point: its product is the Gauss-Newton matrix of the layer, without the gauge."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._chunks import on_threads
from attnlearn.solve.certification._point import free_coordinates, joint_product, original, prepare, size_of


@pytest.fixture(params=[None, 2], ids=["whole", "factors"])
def problem(request, rng, seed):
    layer = AttentionLayer.random(2, 4, rank=request.param, bias=True, seed=seed)
    x = rng.standard_normal((80, 4, 4))
    return layer, x, prepare(layer, x, None, request.param, joint=False, dtype=np.float64)


def test_the_product_is_symmetric_and_positive(problem, rng):
    _, _, point = problem
    a, b = rng.standard_normal((2, size_of(point)))
    with on_threads():
        assert a @ joint_product(point, b) == pytest.approx(b @ joint_product(point, a), rel=1e-6)
        assert a @ joint_product(point, a) > 0


def test_the_product_is_the_change_of_the_outputs(problem, rng):
    """t^T A t is the squared change of the outputs along t, here by central differences of the layer itself."""
    layer, x, point = problem
    t = rng.standard_normal(size_of(point))
    with on_threads():
        free = free_coordinates(point, t)
        square = free.flat() @ joint_product(point, t)
        moved = original(point, point.by.apply(free.scores), point.at.factor.T @ free.linear)
    h = 1e-6
    ends = [
        AttentionLayer(*(own + sign * h * change for own, change in zip(layer.parameters, moved)))
        for sign in (1, -1)
    ]
    change = (ends[0](x) - ends[1](x)) / (2 * h)
    assert square == pytest.approx(np.sum(change**2), rel=1e-3)


def test_gauge_directions_are_left_out_once(problem, rng):
    _, _, point = problem
    once = free_coordinates(point, rng.standard_normal(size_of(point))).flat()
    np.testing.assert_allclose(free_coordinates(point, once).flat(), once, atol=1e-6)
