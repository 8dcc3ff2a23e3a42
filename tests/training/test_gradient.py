"""The closed forms against autodiff: loss, gradient, chunks, scales, both models, both dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlearn._precision import precision
from attnlearn.training import AttentionModel, ReadoutModel, _loss, loss_and_gradient
from attnlearn.training._loss import chunk_shape, cut, evaluate, side_by_side
from attnlearn.training._model import Weights, equal_scales
from attnlearn.training._wide import WideModel

MODELS = [AttentionModel(), WideModel(), ReadoutModel(0), ReadoutModel(-1)]
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}


def reference(model, weights, x, y, scales):
    """The definition, written without any of the package's products."""
    attention = jax.nn.softmax(jnp.einsum("nae,hef,nbf->nhab", model.queries(x), weights.w, x), -1)
    phi = jnp.einsum("h,nhab,nbd,had->n", scales, attention, x, weights.u)
    return jnp.mean(jax.nn.softplus(-y * phi))


def problem(model, num, tokens, dim, heads, seed, dtype=np.float64, size=1.0):
    rng = np.random.default_rng(seed)
    x = (size * rng.standard_normal((num, tokens, dim))).astype(dtype)
    y = np.where(rng.random(num) < 0.5, -1, 1).astype(dtype)
    u = rng.standard_normal((heads, model.positions(tokens), dim)).astype(dtype)
    return u, rng.standard_normal((heads, dim, dim)).astype(dtype), x, y


@pytest.mark.parametrize("model", MODELS, ids=repr)
@given(
    num=st.integers(1, 7),
    tokens=st.integers(1, 4),
    dim=st.integers(1, 4),
    heads=st.integers(1, 3),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 99),
)
@settings(max_examples=5, deadline=None)
def test_matches_autodiff(model, num, tokens, dim, heads, dtype, seed):
    u, w, x, y = problem(model, num, tokens, dim, heads, seed, dtype)
    loss, (gradient_u, gradient_w) = loss_and_gradient(u, w, x, y, model=model)
    with precision(np.float64):
        wide = [jnp.asarray(v, jnp.float64) for v in (u, w, x, y)]
        scales = equal_scales(heads, np.float64)
        expected, gradient = jax.value_and_grad(lambda p: reference(model, p, wide[2], wide[3], scales))(
            Weights(*wide[:2])
        )
        gradient = [np.asarray(part) for part in gradient]
    assert gradient_u.dtype == gradient_w.dtype == dtype
    scale = 1 + max(np.abs(part).max() for part in gradient)
    assert abs(loss - float(expected)) <= TOLERANCE[dtype] * (1 + abs(float(expected)))
    assert np.abs(gradient_u - gradient[0]).max() <= TOLERANCE[dtype] * scale
    assert np.abs(gradient_w - gradient[1]).max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_chunks_change_nothing(model, seed, monkeypatch):
    u, w, x, y = problem(model, 23, 4, 5, 3, seed)
    whole = loss_and_gradient(u, w, x, y, model=model)
    monkeypatch.setattr(_loss, "CHUNK_ELEMENTS", 1200)
    count, size = chunk_shape(23, 4, 5, 3)
    assert count > 4
    assert count % side_by_side() == 0
    assert count * size > 23  # the last chunk is padded
    loss, gradient = loss_and_gradient(u, w, x, y, model=model)
    assert loss == pytest.approx(whole[0], rel=1e-13)
    for part, expected in zip(gradient, whole[1]):
        np.testing.assert_allclose(part, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("model", [AttentionModel(), WideModel()], ids=lambda model: type(model).__name__)
def test_layouts_only_reorder(model, seed):
    u, w, _, _ = problem(model, 1, 3, 5, 2, seed)
    with precision(np.float64):
        packed = model.pack(Weights(jnp.asarray(u), jnp.asarray(w)))
        back = [np.asarray(part) for part in model.unpack(packed)]
        squares = sum(float(jnp.sum(part**2)) for part in packed)
    assert squares == pytest.approx((u**2).sum() + (w**2).sum())
    np.testing.assert_array_equal(back[0], u)
    np.testing.assert_array_equal(back[1], w)


@pytest.mark.parametrize("model", [AttentionModel(), WideModel(), ReadoutModel(1)], ids=repr)
def test_head_of_scale_zero_is_absent(model, seed):
    u, w, x, y = problem(model, 6, 3, 4, 3, seed)
    with precision(np.float64):
        scales = np.array([2**-0.5, 2**-0.5, 0.0])
        padded = evaluate(model, Weights(jnp.asarray(u), jnp.asarray(w)), jnp.asarray(scales), cut(x, y, 3))
        assert float(jnp.abs(padded.gradient.u[2]).max()) == 0 == float(jnp.abs(padded.gradient.w[2]).max())
        padded_loss = float(padded.loss)
    assert padded_loss == pytest.approx(loss_and_gradient(u[:2], w[:2], x, y, model=model)[0], rel=1e-13)


def test_head_order_does_not_matter(seed):
    u, w, x, y = problem(AttentionModel(), 6, 3, 4, 3, seed)
    order = [2, 0, 1]
    loss, gradient = loss_and_gradient(u[order], w[order], x, y)
    expected, straight = loss_and_gradient(u, w, x, y)
    assert loss == pytest.approx(expected, rel=1e-13)
    np.testing.assert_allclose(gradient[0], straight[0][order], rtol=1e-11, atol=1e-13)


def test_large_scores_stay_finite(seed):
    u, w, x, y = problem(AttentionModel(), 5, 4, 3, 2, seed, np.float32, size=100.0)
    loss, gradient = loss_and_gradient(u, w, x, y)
    assert np.isfinite(loss)
    assert all(np.isfinite(part).all() for part in gradient)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.full((4, 3, 2), np.nan)}, "x: must be finite"),
        ({"y": np.array([0.0, 1, 1, -1])}, "y: must hold the labels"),
        ({"y": np.ones(3)}, "y: must be one label for each of the 4 examples of x"),
        ({"u": np.zeros((1, 2, 2))}, "u: must have shape"),
        ({"w": np.zeros((2, 2, 2))}, "w: must have shape"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"u": np.zeros((1, 3, 2)), "w": np.zeros((1, 2, 2)), "x": np.zeros((4, 3, 2)), "y": np.ones(4)}
    with pytest.raises(ValueError, match=message):
        loss_and_gradient(**(given | change))
