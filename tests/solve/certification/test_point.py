"""A point: its product is the Gauss-Newton matrix of the layer, without the gauge."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._chunks import on_threads
from attnlearn.solve.certification._point import (
    free_coordinates,
    kernels,
    original,
    output_product,
    prepare,
    score_product,
    size_of,
)


@pytest.fixture(params=[None, 2], ids=["whole", "factors"])
def problem(request, rng, seed):
    layer = AttentionLayer.random(2, 4, rank=request.param, bias=True, seed=seed)
    x = rng.standard_normal((80, 4, 4))
    return layer, x, prepare(layer, x, None, request.param, joint=False, dtype=np.float64)


def test_the_products_are_symmetric_and_positive(problem, rng):
    _, _, point = problem
    a, b = rng.standard_normal((2, size_of(point)))
    with on_threads():
        kernel = kernels(point)
        for product in (lambda t: score_product(point, t), lambda t: output_product(point, kernel, t)):
            assert a @ product(b) == pytest.approx(b @ product(a), rel=1e-6)
            assert a @ product(a) > 0
        assert a @ output_product(point, kernel, a) > a @ score_product(point, a)  # W and b undo a part


def test_the_products_are_the_change_of_the_outputs(problem, rng):
    """t^T A t is the squared change of the outputs along t, here by central differences of the layer itself, and t^T S t the part
    that no W and b can give."""
    layer, x, point = problem
    t = rng.standard_normal(size_of(point))
    with on_threads():
        free = free_coordinates(point, t)
        change_squared, undone_squared = (
            free @ product for product in (output_product(point, kernels(point), t), score_product(point, t))
        )
        moved = original(point, point.by.apply(point.at.scores.shaped(free)), np.zeros_like(point.linear))
    h = 1e-6
    ends = [
        layer.replace(theta=layer.theta + sign * h * moved.theta, query_bias=layer.query_bias + sign * h * moved.query_bias)
        for sign in (1, -1)
    ]  # fmt: skip
    change = (ends[0](x) - ends[1](x)) / (2 * h)
    assert change_squared == pytest.approx(np.sum(change**2), rel=1e-3)
    alpha = layer.patterns(x)
    mixed = np.einsum("nmab,nbd->namd", alpha, x).reshape(-1, layer.num_heads * layer.dim)
    columns = np.concatenate([mixed, np.ones((len(mixed), 1))], axis=1)
    flat = change.reshape(len(columns), -1)
    left = flat - columns @ np.linalg.lstsq(columns, flat, rcond=None)[0]
    assert undone_squared == pytest.approx(np.sum(left**2), rel=1e-3)


def test_even_weights_are_those_of_the_large_sequences(rng, seed):
    layer = AttentionLayer.random(2, 4, scale=0.5, seed=seed)
    x, sizes = rng.standard_normal((200, 5, 4)), np.repeat([0.5, 1.0, 3.0], [60, 80, 60])
    mask = np.arange(5) < rng.integers(2, 6, 200)[:, None]
    with on_threads():
        point = prepare(layer, sizes[:, None, None] * x, mask, None, False, 200, even=True)
    assert point.weights.max() == 1
    assert np.median(point.weights[sizes == 3.0]) < 0.2
    assert (point.weights[sizes == 0.5] == 1).mean() > 0.9


def test_gauge_directions_are_left_out_once(problem, rng):
    _, _, point = problem
    once = free_coordinates(point, rng.standard_normal(size_of(point)))
    np.testing.assert_allclose(free_coordinates(point, once), once, atol=1e-6)


def test_combinations_of_the_outputs_show_no_more_than_all(rng, seed):
    layer, x = AttentionLayer.random(1, 4, seed=seed), rng.standard_normal((1_500, 5, 4))
    layer = AttentionLayer(layer.theta, rng.standard_normal((1, 4, 160)))
    with on_threads():
        few, every = (
            prepare(layer, x, None, None, False, 1_200, np.float64, rough=rough) for rough in (True, False)
        )
        assert few.at.linear.shape[1] < every.at.linear.shape[1] == few.linear.shape[1]
        every = every._replace(by=few.by)  # the same coordinates
        for t in rng.standard_normal((5, size_of(few))):
            assert t @ score_product(few, t) <= t @ score_product(every, t)
            few_kernel, kernel = kernels(few), kernels(every)
            assert t @ output_product(few, few_kernel, t) == pytest.approx(
                t @ output_product(every, kernel, t)
            )
