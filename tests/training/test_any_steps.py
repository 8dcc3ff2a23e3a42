"""The certificate of any steps along the gradient, against a forward pass and derivatives of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlearn.data import TokenizedMixture
from attnlearn.training import TrainConfig, bounds, fit
from attnlearn.training._any_steps import bounds_along_any, strides, verify_any
from attnlearn.training._certify import verify_run
from attnlearn.training._evidence import RunEvidence

RULES = ("normalized", "polyak", "decaying", "random", "gd")


def loss(theta, x, y):
    """The mean logistic loss of Phi = (1/sqrt H) sum_h <U_h, softmax(X W_h X^T) X>, written as it stands."""
    u, w = theta
    scores = jnp.einsum("nad,hde,nbe->nhab", x, w, x)
    phi = jnp.einsum("had,nhab,nbd->n", u, jax.nn.softmax(scores, axis=-1), x) / jnp.sqrt(len(u))
    return jnp.mean(jnp.logaddexp(0.0, -y * phi))


@pytest.fixture(scope="module")
def value_and_gradient():
    with jax.enable_x64(True):
        yield jax.jit(jax.value_and_grad(loss))


def norm_sq(theta):
    return sum(float(np.sum(np.asarray(part) ** 2)) for part in theta)


def minus(a, b, factor=1.0):
    return tuple(np.asarray(p) - factor * np.asarray(q) for p, q in zip(a, b, strict=True))


def dot(a, b):
    return sum(float(np.sum(np.asarray(p) * np.asarray(q))) for p, q in zip(a, b, strict=True))


def run(evaluate, rule, rng, steps=12):
    """A run of that rule on a random problem with a random comparator: its evidence and the lengths of its steps."""
    x = np.exp(rng.uniform(-1, 1)) * rng.standard_normal((6, 3, 3))
    y = np.sign(rng.standard_normal(6))
    theta = tuple(np.exp(rng.uniform(-2, 1)) * rng.standard_normal((2, 3, 3)) for _ in range(2))
    star = tuple(part + np.exp(rng.uniform(-2, 1)) * rng.standard_normal(part.shape) for part in theta)
    step, distance = float(np.exp(rng.uniform(-3, 1))), np.sqrt(norm_sq(minus(theta, star)))
    trace, lengths = [], []
    for k in range(steps + 1):
        value, gradient = evaluate(theta, x, y)
        squares = norm_sq(gradient)
        trace.append((float(value), squares, dot(gradient, minus(theta, star)), 0.0))
        eta = {
            "normalized": step / np.sqrt(squares),
            "polyak": min(step, float(value) / squares),
            "decaying": step / np.sqrt(k + 1),
            "random": step * rng.exponential(),
            "gd": step,
        }[rule]
        if k < steps:
            lengths.append(eta)
            theta = minus(theta, gradient, eta)
    columns = map(np.array, zip(*trace, strict=True))
    end = float(np.sqrt(norm_sq(minus(theta, star))))
    loss_star = float(evaluate(star, x, y)[0])
    return RunEvidence(*columns, step, loss_star, float(distance), end, 1.0), np.array(lengths)


def test_no_bound_below_its_measurement_in_500_problems(value_and_gradient, seed):
    absorbing = tight = 0
    for index in range(500):
        rule = RULES[index % len(RULES)]
        evidence, eta = run(value_and_gradient, rule, np.random.default_rng([seed, index]))
        if rule != "random":
            assert np.allclose(
                strides(rule, evidence.step, evidence.loss[:-1], evidence.gradient_sq[:-1]), eta
            )
        verdict = verify_any(evidence, eta)
        assert verdict.mean <= verdict.bound * (1 + 1e-10)
        assert np.isclose(verdict.mean, np.average(evidence.loss[:-1], weights=eta))
        along, means = bounds_along_any(evidence, eta)
        assert np.all(means <= along * (1 + 1e-9))
        assert np.isclose(along[-1], verdict.bound, rtol=1e-6, atol=1e-9)
        absorbing += verdict.absorbed > 0.01
        tight += verdict.bound < 4 * verdict.mean
        if rule == "gd":
            found = verify_run(evidence, 1e-16)
            assert evidence.loss[-1] <= found.last * (1 + 1e-10)
    assert absorbing >= 20, "too few violations to say anything"
    assert tight >= 20, "too few tight bounds to say anything"


def test_without_the_violations_the_bound_can_be_false(value_and_gradient, seed):
    """So the terms f_k are needed, and a share of them is what the certificate looks at."""
    below = 0
    for index in range(200):
        evidence, eta = run(value_and_gradient, "random", np.random.default_rng([seed, 7, index]))
        verdict = verify_any(evidence, eta)
        bare = verdict.bound * (1 - verdict.absorbed)
        below += verdict.mean > bare
        if verdict.absorbed == 0:
            assert verdict.mean <= bare * (1 + 1e-10)
    assert below >= 1


@pytest.mark.parametrize("optimizer", ["normalized", "polyak", "decaying"])
@pytest.mark.parametrize("init", ["zero", "first-step"])
def test_a_run_is_certified(optimizer, init):
    x, y = TokenizedMixture(tokens=6, dim=20).sample(80, seed=0)
    config = TrainConfig(replays=0)
    solution = fit(x, y, num_heads=4, optimizer=optimizer, init=init, max_steps=1000, config=config)
    claim = solution.certificate.claim("R")
    assert claim.established
    assert solution.certified
    assert claim.value["measured"] <= claim.value["bound"] < claim.value["loss_start"]
    assert claim.value["absorbed"] <= 0.01
    curves = solution.stats["curves"]
    assert np.all(np.array(curves["mean_loss"][1:]) <= np.array(curves["bound"][1:]) * (1 + 1e-9))


def test_labels_of_a_coin_are_not_certified(rng):
    x = rng.standard_normal((60, 3, 4))
    y = rng.permutation([1] * 30 + [-1] * 30)
    solution = fit(x, y, num_heads=2, optimizer="normalized", step=3.0, max_steps=50, raise_on_failure=False)
    assert not solution.certified
    assert solution.outcome.name == "NOT_ESTABLISHED"
    assert "reason" in solution.certificate.claim("R").value


def test_the_loop_takes_the_steps_that_the_certificate_assumes(value_and_gradient):
    x, y = TokenizedMixture(tokens=3, dim=5).sample(30, seed=1)
    for optimizer in ("normalized", "polyak", "decaying"):
        solution = fit(
            x, y, num_heads=2, optimizer=optimizer, init="zero", step=0.5, max_steps=20,
            config=TrainConfig(replays=0), raise_on_failure=False,
        )  # fmt: skip
        theta = (np.zeros((2, 3, 5)), np.zeros((2, 5, 5)))
        for k in range(20):
            value, gradient = value_and_gradient(theta, x, y)
            eta = strides(optimizer, 0.5, np.full(k + 1, float(value)), np.full(k + 1, norm_sq(gradient)))[k]
            theta = minus(theta, gradient, eta)
        assert np.allclose(solution.layer.u, theta[0], rtol=1e-8, atol=1e-12)
        assert np.allclose(solution.layer.w, theta[1], rtol=1e-8, atol=1e-12)


def test_the_last_loss_is_below_its_bound_with_descent(seed):
    x, y = TokenizedMixture(tokens=4, dim=8).sample(40, seed=seed)
    solution = fit(x, y, num_heads=4, max_steps=100, config=TrainConfig(replays=0))
    figures = solution.stats["tiers"]["run-verified"]
    assert figures["last"] <= figures["last_bound"]
    assert solution.certificate.check("R.last").status.value == "holds"


def test_gradients_that_underflow_are_not_certified():
    """The length of a normalized step is unknown once its squared gradient is."""
    run = RunEvidence(
        np.array([0.5, 1e-30, 1e-40]),
        np.array([1.0, 0.0, 0.0]),
        np.array([0.5, 0.0, 0.0]),
        np.ones(3),
        3.0,
        0.0,
        2.0,
        1.0,
        1.0,
    )
    eta = strides("normalized", 3.0, run.loss[:-1], run.gradient_sq[:-1])
    assert verify_any(run, eta).absorbed <= 1
    assert verify_any(run, eta, least=1e-38).absorbed == np.inf


def test_the_right_side_is_the_formula():
    assert bounds.weighted_right_side(1.0, 0.0, 0.0, 1.0, 0.0, 0.0) == 0.5
    assert bounds.weighted_right_side(0.0, 0.0, 3.0, 2.0, 4.0, 1.0) == 8.0 + 2.0 + 1.0
