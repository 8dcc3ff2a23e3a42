"""Every inequality of the theory against autodiff on random problems; limits and scalings of the formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlearn._precision import precision
from attnlearn.training import AttentionModel, ReadoutModel, bounds
from attnlearn.training._model import Weights

PROBLEMS = 500
SHAPES = {"num": 4, "tokens": 3, "dim": 2, "heads": 2}


def phi(model, flat, x):
    heads, dim = SHAPES["heads"], SHAPES["dim"]
    rows = model.positions(SHAPES["tokens"])
    u = flat[: heads * rows * dim].reshape(heads, rows, dim)
    w = flat[heads * rows * dim :].reshape(heads, dim, dim)
    attention = jax.nn.softmax(jnp.einsum("nae,hef,nbf->nhab", model.queries(x), w, x), -1)
    return jnp.einsum("nhab,nbd,had->n", attention, x, u) / heads**0.5


def measure(model, flat, x, y):
    def loss(p):
        return jnp.mean(jax.nn.softplus(-y * phi(model, p, x)))

    gradients = jax.jacrev(lambda p: phi(model, p, x))(flat)
    hessians = jax.hessian(lambda p: phi(model, p, x))(flat)
    return {
        "gradient": jnp.linalg.norm(gradients, axis=1).max(),
        "hessian": jnp.abs(jnp.linalg.eigvalsh(hessians)).max(),
        "loss": loss(flat),
        "loss_gradient": jnp.linalg.norm(jax.grad(loss)(flat)),
        "curvature": jnp.linalg.eigvalsh(jax.hessian(loss)(flat)),
    }


@pytest.mark.parametrize("model", [AttentionModel(), ReadoutModel(0)], ids=str)
def test_no_bound_below_the_measurement(model, seed):
    rng = np.random.default_rng(seed)
    rows, tokens, dim, heads = model.positions(3), 3, 2, SHAPES["heads"]
    size = np.exp(rng.uniform(-1.5, 1.5, PROBLEMS))  # token sizes over a factor of 20
    x = size[:, None, None, None] * rng.standard_normal((PROBLEMS, SHAPES["num"], tokens, dim))
    y = np.where(rng.random((PROBLEMS, SHAPES["num"])) < 0.5, -1.0, 1.0)
    u = np.exp(rng.uniform(-2, 1, (PROBLEMS, 1))) * rng.standard_normal((PROBLEMS, heads * rows * dim))
    w = np.exp(rng.uniform(-2, 2, (PROBLEMS, 1))) * rng.standard_normal((PROBLEMS, heads * dim * dim))
    with precision(np.float64):
        flat = jnp.asarray(np.concatenate([u, w], axis=1))
        found = jax.jit(jax.vmap(lambda p, x, y: measure(model, p, x, y)))(flat, x, y)
        found = {name: np.asarray(value) for name, value in found.items()}
    radius = np.linalg.norm(x, axis=-1).max(axis=(1, 2))
    norm = np.linalg.norm(u.reshape(PROBLEMS, heads, -1), axis=-1).max(axis=1)
    beta1, beta2 = model.beta1(tokens, radius, norm), model.beta2(tokens, radius, norm)
    kappa, slack = beta2 / heads**0.5, 1 + 1e-9
    assert np.all(found["gradient"] <= beta1 * slack)
    assert np.all(found["hessian"] <= kappa * slack)
    assert np.all(found["loss_gradient"] <= beta1 * found["loss"] * slack)
    assert np.all(found["curvature"].max(axis=1) <= bounds.smoothness(beta1, beta2, heads) * slack)
    assert np.all(found["curvature"].min(axis=1) >= -kappa * found["loss"] * slack - 1e-9)
    # The bounds are not vacuous: somewhere each is within a factor of ten.
    assert (found["gradient"] / beta1).max() > 0.1
    assert (found["hessian"] / kappa).max() > 0.1


def test_third_moment_is_attained():
    p = 0.5 - 1 / math.sqrt(12)
    moment = 8 * p * (1 - p) * (1 - 2 * p)
    assert moment == pytest.approx(4 / (3 * math.sqrt(3)), rel=1e-12)


@given(st.floats(0.1, 10), st.floats(0, 10), st.integers(1, 50))
def test_beta2_is_below_the_simpler_form(radius, norm, rows):
    simple = rows**0.5 * radius**3 * (1 + 0.76981 * radius**2 * norm)
    assert bounds.beta2(rows, radius, norm) <= simple * (1 + 1e-12)


@given(st.floats(0.1, 10), st.floats(0, 10), st.floats(1.1, 4))
def test_bounds_grow_with_radius_and_norm(radius, norm, factor):
    for bound in (bounds.beta1, bounds.beta2):
        assert bound(3, radius * factor, norm) > bound(3, radius, norm)
        assert bound(3, radius, norm * factor) >= bound(3, radius, norm)
        assert bound(12, radius, norm) == pytest.approx(2 * bound(3, radius, norm))


def test_heads_condition_gives_the_third():
    # (q/2) / (1 - q/8) = 1/3 at the q that the heads condition allows
    beta2, distance = 3.0, 2.0
    kappa = beta2 / bounds.heads_needed(beta2, distance) ** 0.5
    q = kappa * 13 / 3 * distance**2
    assert q == pytest.approx(8 / 13)
    assert (q / 2) / (1 - q / 8) == pytest.approx(1 / 3)


def test_realizability_allowance_matches_the_heads_condition():
    from attnlearn.training._calibration import CURVATURE_ALLOWANCE

    beta2, distance = 3.0, 2.0
    kappa = beta2 / bounds.heads_needed(beta2, distance) ** 0.5
    assert kappa * distance**2 == pytest.approx(2 * CURVATURE_ALLOWANCE)


def test_generalization_constant_limits():
    assert bounds.expansion_constant(2.0) == math.inf
    assert bounds.expansion_constant(14.5) == pytest.approx(2.0, abs=0.01)
    assert bounds.expansion_constant(1e9) == pytest.approx(1.0)
    assert bounds.generalization_bound(1, 1, 200, 1) == bounds.generalization_bound(1, 1, 100, 1) / 2


def test_step_limit_is_each_of_the_three():
    assert bounds.step_limit(4.0, 1.0, 10, 0.01, 0.5) == 0.25
    assert bounds.step_limit(0.1, 1.0, 1000, 0.1, 0.5) == pytest.approx(0.01)
    assert bounds.step_limit(0.1, 1.0, 10, 0.0, 0.5) == 2.0


def test_weights_have_two_parts():
    assert Weights._fields == ("u", "w")
