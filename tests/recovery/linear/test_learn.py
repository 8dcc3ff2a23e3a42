"""`recover(..., method="linear")`: exact, counted, unique where it is, and never "unique" where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, LinearAttentionLayer, Outcome, recover
from attnlearn.recovery.linear import LinearConfig
from attnlearn.recovery.linear._certify import population_floor
from attnlearn.recovery.linear._features import Coordinates
from attnlearn.recovery.linear._regress import regress
from attnlearn.solve._batch import Batch


def linear(x, y, **options):
    return recover(x, y, method="linear", raise_on_failure=False, **options)


def relative(layer, truth, x, mask=None):
    return np.linalg.norm(layer(x, mask) - truth(x, mask)) / np.linalg.norm(truth(x, mask))


@pytest.mark.parametrize("case", range(20))
def test_twenty_of_twenty_layers_at_d_8(case):
    rng = np.random.default_rng(case)
    heads, rank = 1 + case % 8, (1, 2, 4, 8)[case % 4]
    truth = LinearAttentionLayer.random(
        heads, 8, rank=rank, seed=case, bias=case % 2 == 1, causal=case % 3 == 1
    )
    x = rng.standard_normal((1500, 6, 8))
    solution = linear(x, truth(x))
    assert solution.certified, solution
    assert solution.layer.num_heads == heads
    assert solution.layer.causal == truth.causal
    fresh = 3 * rng.standard_normal(
        (200, 9, 8)
    )  # another length and another scale: the function is the same everywhere
    assert relative(solution.layer, truth, fresh) < 1e-10


@pytest.mark.slow
def test_a_layer_at_d_16():
    rng = np.random.default_rng(0)
    truth = LinearAttentionLayer.random(4, 16, rank=4)
    x = rng.standard_normal((3200, 8, 16))
    solution = linear(x, truth(x), causal=False, config=LinearConfig(biases=False))
    assert solution.certified
    assert solution.layer.num_heads == 4
    assert relative(solution.layer, truth, rng.standard_normal((50, 8, 16))) < 1e-10


def test_masks_unequal_dimensions_and_correlated_tokens(rng):
    truth = LinearAttentionLayer(rng.standard_normal((2, 5, 5)), rng.standard_normal((2, 5, 3)))
    x = (rng.standard_normal((2000, 6, 5)) @ rng.standard_normal((5, 5))) * np.array([10, 1, 1, 1, 0.1])
    x += rng.standard_normal(5)
    mask = np.arange(6) < rng.integers(2, 7, (2000, 1))
    solution = linear(x, truth(x, mask), mask=mask)
    assert solution.certified, solution
    assert relative(solution.layer, truth, x, mask) < 1e-10


def test_float32(rng):
    truth = LinearAttentionLayer.random(2, 5).astype(np.float32)
    x = rng.standard_normal((1500, 6, 5)).astype(np.float32)
    solution = linear(x, truth(x))
    assert solution.layer.dtype == np.float32
    assert solution.certified, solution
    assert relative(solution.layer, truth, x) < 1e-5


def degenerate(kind, rng, n=1500, k=6, d=4):
    x = rng.standard_normal((n, k, d))
    if kind == "one token, repeated":
        return np.repeat(x[:, :1], k, axis=1)
    if kind == "an antipodal pair":
        return np.stack([x[:, 0], -x[:, 0]], axis=1)
    if kind == "few directions":
        return x[..., :2] @ rng.standard_normal((2, d))
    if kind == "signs":
        return np.sign(x)
    if kind == "unit sphere":
        return x / np.linalg.norm(x, axis=2, keepdims=True)
    if kind == "few words":
        return rng.standard_normal((4, d))[rng.integers(4, size=(n, k))]
    raise AssertionError(kind)


KINDS = ["one token, repeated", "an antipodal pair", "few directions", "signs", "unit sphere", "few words"]


@pytest.mark.parametrize("kind", KINDS)
def test_never_unique_on_degenerate_tokens(rng, kind):
    """And there it really is not: a direction of the coefficients that no example shows changes other inputs."""
    x = degenerate(kind, rng)
    truth = LinearAttentionLayer.random(2, 4, seed=3)
    solution = linear(x, truth(x), causal=False)
    assert not solution.certified
    assert solution.outcome is Outcome.TOKENS_DEGENERATE
    assert not solution.certificate.claim("U").established
    assert "every linear-attention layer" not in str(solution)
    assert not solution.certificate.claim("C2").established
    plain = Coordinates(np.eye(4), False, True, np.ones(1))
    features = np.concatenate([part.features for part in plain.rows(Batch(x[:300], truth(x[:300])))])
    values = np.linalg.svd(features, compute_uv=False)
    assert values[-1] < 1e-9 * values[0]


def test_tokens_that_only_look_degenerate_are_unique(rng):
    """Two antipodal pairs show every monomial: the function is determined, and a fresh input agrees."""
    u = rng.standard_normal((2000, 2, 4))
    truth = LinearAttentionLayer.random(2, 4, seed=3)
    x = np.concatenate([u, -u], axis=1)
    solution = linear(x, truth(x))
    assert solution.certified, solution
    assert relative(solution.layer, truth, rng.standard_normal((100, 7, 4))) < 1e-10


def test_too_few_examples_are_said_to_be(rng):
    truth = LinearAttentionLayer.random(2, 8)
    x = rng.standard_normal((40, 4, 8))
    solution = linear(x, truth(x), causal=False)
    assert solution.outcome is Outcome.TOO_FEW_EXAMPLES
    assert solution.stats["examples_needed"] > 200
    assert not solution.certificate.claim("U").established


def test_the_population_bound_holds(rng):
    """500 samples of features whose second moment is known: the bound never exceeds the smallest eigenvalue."""
    d, delta = 2, 0.05
    failures = 0
    for _ in range(500):
        x = rng.standard_normal((60, 3, d))
        plain = Coordinates(np.eye(d), False, False, np.ones(1))
        fit = regress(plain, Batch(x, x))
        failures += population_floor(fit.blocks, delta) > TRUE_SMALLEST
    assert failures <= 500 * delta


def _true_smallest() -> float:
    x = np.random.default_rng(7).standard_normal((400_000, 3, 2))
    features = np.concatenate(
        [part.features for part in Coordinates(np.eye(2), False, False, np.ones(1)).rows(Batch(x, x))]
    )
    return float(np.linalg.eigvalsh(features.T @ features / len(features))[0])


TRUE_SMALLEST = _true_smallest()


def test_the_best_substitute_of_a_softmax_layer(rng):
    """No other linear layer does better, and a target makes its error a claim."""
    softmax = AttentionLayer.random(2, 4, scale=0.5)
    x = rng.standard_normal((4000, 5, 4))
    y = softmax(x)
    solution = linear(x, y, causal=False, target=2.0)
    assert solution.certificate.claim("C1").established
    assert solution.outcome is Outcome.ON_TARGET
    assert solution.achieved
    assert not solution.certified
    assert solution.verdict.startswith("A linear layer with ")
    assert solution.stats["select_error"] <= 1.01 * solution.stats["least_squares_error"]
    claim = solution.certificate.claim(
        "U"
    )  # least squares is unique, and the layer has fewer heads than its fit
    assert not claim.established
    assert "least-squares fit is one function" in claim.text
    error = np.linalg.norm(solution.layer(x) - y)
    assert error < 0.75 * np.linalg.norm(y)
    assert np.isclose(solution.stats["select_error"], error / np.linalg.norm(y), rtol=0.1)
    for _ in range(20):
        other = solution.layer.replace(
            theta=solution.layer.theta + 0.02 * rng.standard_normal(solution.layer.theta.shape),
            w=solution.layer.w + 0.02 * rng.standard_normal(solution.layer.w.shape),
        )
        assert np.linalg.norm(other(x) - y) > error


def test_a_softmax_layer_is_not_certified(rng):
    x = rng.standard_normal((2000, 5, 4))
    solution = linear(x, AttentionLayer.random(2, 4)(x))
    assert solution.outcome is Outcome.NOT_ATTENTION
    assert not solution.certificate.claim("C1").established


def test_noise_is_said_to_be_noise(rng):
    truth = LinearAttentionLayer.random(2, 4)
    x = rng.standard_normal((4000, 5, 4))
    y = truth(x)
    y = y + 0.01 * np.std(y) * rng.standard_normal(y.shape)
    solution = linear(x, y)
    assert solution.outcome is Outcome.BELOW_NOISE_FLOOR
    assert not solution.certificate.claim("C2").established
    # Two heads do better than least squares, whose fit has the noise in it: the layer is not that fit, and does not say so.
    assert solution.layer.num_heads < 8
    assert not solution.certificate.claim("U").established
    assert relative(solution.layer, truth, x) < 0.01


def test_a_given_number_of_heads_that_is_too_small_is_not_unique(rng):
    truth = LinearAttentionLayer.random(3, 5)
    x = rng.standard_normal((1500, 6, 5))
    solution = linear(x, truth(x), num_heads=2)
    assert solution.layer.num_heads == 2
    assert not solution.certificate.claim("U").established
    assert not solution.certified


def test_bad_arguments_are_refused(rng):
    x = rng.standard_normal((300, 4, 3))
    with pytest.raises(ValueError, match="config: must be a LinearConfig"):
        recover(x, x, method="linear", config=3)
    with pytest.raises(ValueError, match="memory: must be at least"):
        recover(rng.standard_normal((60, 4, 40)), np.zeros((60, 4, 2)), method="linear")


def test_the_result_is_json_and_a_report(rng, tmp_path):
    from attnlearn import report
    from attnlearn._serialize import schema

    jsonschema = pytest.importorskip("jsonschema")
    truth = LinearAttentionLayer.random(2, 4)
    x = rng.standard_normal((1500, 5, 4))
    solution = linear(x, truth(x))
    document = solution.to_json()
    jsonschema.validate(document, schema())
    assert document["layer"]["summary"]["kind"] == "linear attention layer"
    report(solution, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 1000
