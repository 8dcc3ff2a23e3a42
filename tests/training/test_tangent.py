"""Tangent kernel against the Jacobian; the margin's optimality conditions; the comparator by evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlearn._precision import precision
from attnlearn.data import TokenizedMixture
from attnlearn.training import AttentionModel, ReadoutModel
from attnlearn.training._compare import choose_comparator, tangent, to_device
from attnlearn.training._initialize import initialize
from attnlearn.training._loss import cut
from attnlearn.training._model import Weights, equal_scales
from attnlearn.training._problem import make_problem
from attnlearn.training._tangent import combine_gradients, separate, tangent_kernel


def jacobian(model, weights, x):
    def phi(p):
        attention = jax.nn.softmax(jnp.einsum("nae,hef,nbf->nhab", model.queries(x), p.w, x), -1)
        return jnp.einsum("nhab,nbd,had->n", attention, x, p.u) / len(p.u) ** 0.5

    parts = jax.jacrev(phi)(weights)
    return np.concatenate([np.asarray(part).reshape(len(x), -1) for part in parts], axis=1)


@pytest.mark.parametrize("model", [AttentionModel(), ReadoutModel(-1)], ids=str)
def test_kernel_is_the_jacobian_gram(model, seed):
    rng = np.random.default_rng(seed)
    with precision(np.float64):
        x = jnp.asarray(rng.standard_normal((9, 4, 5)))
        weights = Weights(
            jnp.asarray(rng.standard_normal((3, model.positions(4), 5))),
            jnp.asarray(rng.standard_normal((3, 5, 5))),
        )
        scales = equal_scales(3, np.float64)
        kernel = np.asarray(tangent_kernel(model, weights, scales, x))
        expected = jacobian(model, weights, x)
        coefficients = rng.standard_normal(9)
        combined = combine_gradients(model, weights, scales, x[None], jnp.asarray(coefficients)[None])
        flat = np.concatenate([np.asarray(part).ravel() for part in combined])
    np.testing.assert_allclose(kernel, expected @ expected.T, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(flat, coefficients @ expected, rtol=1e-10, atol=1e-10)
    assert np.array_equal(kernel, kernel.T)


def test_margin_satisfies_the_optimality_conditions(seed):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((12, 40))
    y = np.where(rng.random(12) < 0.5, -1.0, 1.0)
    found = separate(features @ features.T, y)
    v = found.coefficients @ features
    margins = y * (features @ v)
    assert np.linalg.norm(v) == pytest.approx(1)
    assert margins.min() == pytest.approx(found.margin)
    # No direction does better: 0 margin is the length of a convex combination (weak duality).
    a = found.coefficients * y
    assert a.min() >= 0
    dual = np.linalg.norm((a / a.sum() * y) @ features)
    assert found.margin <= dual * (1 + 1e-9)
    assert found.margin >= dual * (1 - 1e-5)


def test_two_equal_tokens_with_opposite_labels_have_no_margin():
    assert separate(np.ones((2, 2)), np.array([1.0, -1.0])).margin <= 1e-6


def test_intercept_is_not_used():
    # Both points on one side of the origin: separable with an intercept, not without.
    features = np.array([[1.0], [2.0]])
    assert separate(features @ features.T, np.array([-1.0, 1.0])).margin <= 1e-6


def test_comparator_loss_is_evaluated_on_all_examples(seed, monkeypatch):
    from attnlearn.training import _compare

    x, y = TokenizedMixture(tokens=4, dim=6).sample(60, seed=seed)
    problem = make_problem(x, y, num_heads=3, max_steps=100)
    start = initialize(problem.model, "first-step", x, y, 3, np.random.default_rng(seed))
    monkeypatch.setattr(_compare, "TANGENT_EXAMPLES", 25)
    with precision(np.float64):
        found = tangent(problem, start, np.random.default_rng(seed))
        star = choose_comparator(problem, start, found, 0.5, to_device(cut(x, y, 3)))
    assert found.examples == 25
    assert found.rounds >= 2
    from attnlearn.training import loss_and_gradient

    assert loss_and_gradient(*star.weights, x, y)[0] == pytest.approx(star.loss, rel=1e-10)
    assert 0 < star.distance < 1e4


def margin_of(x, y, seed, examples, monkeypatch):
    from attnlearn.training import _compare

    monkeypatch.setattr(_compare, "TANGENT_EXAMPLES", examples)
    problem = make_problem(x, y, num_heads=3)
    start = initialize(problem.model, "first-step", x, y, 3, np.random.default_rng(seed))
    with precision(np.float64):
        return tangent(problem, start, np.random.default_rng(seed)), start


def test_margin_of_working_sets_is_that_of_all_examples(seed, monkeypatch):
    x, y = TokenizedMixture(tokens=4, dim=6).sample(300, seed=seed)
    whole, start = margin_of(x, y, seed, 300, monkeypatch)
    parts, _ = margin_of(x, y, seed, 60, monkeypatch)
    assert whole.rounds == 1
    assert parts.rounds > 1
    assert parts.margin == pytest.approx(whole.margin, rel=2e-3)
    # Attained on every example, by another route.
    with precision(np.float64):
        rows = jacobian(AttentionModel(), Weights(*map(jnp.asarray, start)), jnp.asarray(x))
    v = np.concatenate([part.ravel() for part in parts.direction])
    assert (y * (rows @ v)).min() / np.linalg.norm(v) >= parts.margin


def test_one_contradiction_among_many_is_found(seed, monkeypatch):
    x, y = TokenizedMixture(tokens=4, dim=6).sample(300, seed=seed)
    x[-1], y[-1] = x[0], -y[0]
    found, _ = margin_of(x, y, seed, 60, monkeypatch)
    assert found.margin <= 0


def test_rounding_does_not_make_a_margin(seed, monkeypatch):
    x = np.zeros((4, 2, 3))
    found, _ = margin_of(x, np.array([1.0, -1, 1, -1]), seed, 60, monkeypatch)
    assert found.margin <= 0
