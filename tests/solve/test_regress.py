"""Regress: the linear part of a layer from its scores, against dense least squares."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._regress import inverse_factor, regress


def dense(layer: AttentionLayer, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares on the written-out columns [alpha_1 X, ..., alpha_m X, 1]."""
    patterns = layer.patterns(x, mask)
    columns = np.einsum("nmab,nbd->namd", patterns, x * mask[..., None]).reshape(*x.shape[:2], -1)
    columns = np.concatenate([columns, np.ones((*x.shape[:2], 1))], axis=2)[mask]
    answer, *_ = np.linalg.lstsq(columns, y[mask], rcond=None)
    rest = columns @ answer - y[mask]
    return answer, float(np.linalg.norm(rest) / np.linalg.norm(y[mask] - y[mask].mean(axis=0)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_agrees_with_dense_least_squares(rng, causal, padded):
    layer = AttentionLayer.random(3, 5, bias=True, causal=causal)
    x = rng.standard_normal((60, 4, 5)) * [3, 1, 0.1, 1, 1] + [5, 0, 0, 0, 1]
    mask = np.ones((60, 4), bool)
    if padded:
        mask[:30, 3] = False
    y = rng.standard_normal((60, 4, 2))
    w, b, residual = regress(layer.theta, layer.query_bias, x, y, mask=mask, causal=causal)
    expected, rest = dense(layer, x, y, mask)
    np.testing.assert_allclose(np.concatenate([w.reshape(15, 2), b[None]]), expected, atol=1e-8)
    np.testing.assert_allclose(residual, rest, rtol=1e-8)


def test_recovers_the_linear_part_exactly(rng):
    layer = AttentionLayer.random(4, 6, bias=True)
    x = rng.standard_normal((80, 5, 6))
    w, b, residual = regress(layer.theta, layer.query_bias, x, layer(x))
    np.testing.assert_allclose(w, layer.w, atol=1e-11)
    np.testing.assert_allclose(b, layer.output_bias, atol=1e-11)
    assert residual < 1e-13


def test_equal_heads_still_give_the_best_residual(rng):
    layer = AttentionLayer.random(2, 4)
    twice = np.repeat(layer.theta[:1], 2, axis=0)
    x, y = rng.standard_normal((50, 4, 4)), rng.standard_normal((50, 4, 4))
    _, _, one = regress(twice[:1], np.zeros((1, 4)), x, y)
    w, _, two = regress(twice, np.zeros((2, 4)), x, y)
    assert np.isfinite(w).all()
    np.testing.assert_allclose(two, one, rtol=1e-9)


def test_ridge_shrinks_and_costs_residual(rng):
    layer = AttentionLayer.random(2, 4)
    x = rng.standard_normal((50, 4, 4))
    w0, _, r0 = regress(layer.theta, layer.query_bias, x, layer(x))
    w1, _, r1 = regress(layer.theta, layer.query_bias, x, layer(x), ridge=0.1)
    assert np.linalg.norm(w1) < np.linalg.norm(w0)
    assert r1 > r0


def test_float32_in_float32_out(rng):
    layer = AttentionLayer.random(2, 4).astype(np.float32)
    x = rng.standard_normal((50, 4, 4)).astype(np.float32)
    w, b, residual = regress(layer.theta, layer.query_bias, x, layer(x))
    assert w.dtype == b.dtype == np.float32
    assert residual < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ridge": -1.0}, "ridge: must be"),
        ({"x": np.zeros((3, 2, 9))}, "x: must have shape"),
        ({"y": np.zeros((4, 2, 4))}, "y: must have shape"),
        ({"query_bias": np.zeros((1, 4))}, "query_bias: must have shape"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"theta": np.zeros((2, 4, 4)), "query_bias": np.zeros((2, 4))}
    arguments |= {"x": np.zeros((3, 2, 4)), "y": np.zeros((3, 2, 4))} | change
    with pytest.raises(ValueError, match=message):
        regress(**arguments)


def test_factor_of_a_matrix_that_is_zero_up_to_rounding() -> None:
    """Saturated attention leaves curvature of either sign at the level of rounding; the factor must exist all the same."""
    matrix = 1e-7 * np.array([[-1.2, 0.3, 0.1], [0.3, -1.1, 0.2], [0.1, 0.2, 0.5]])
    factor = inverse_factor(matrix, 1e-6)
    assert np.isfinite(factor).all()
    assert (np.diag(factor) > 0).all()
    assert np.isnan(inverse_factor(np.array([[1.0, np.inf], [np.inf, 1.0]]), 1e-6)).all()
    good = np.array([[2.0, 0.5], [0.5, 1.0]])
    np.testing.assert_allclose(
        inverse_factor(good, 1e-12) @ good @ inverse_factor(good, 1e-12).T, np.eye(2), atol=1e-9
    )
