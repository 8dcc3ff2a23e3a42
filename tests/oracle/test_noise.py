from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.oracle import Oracle
from attnlearn.oracle._noise import rounding
from attnlearn.oracle._serve import rounded


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(num_heads=2, dim=8, seed=seed)


def test_deterministic_layer(layer):
    oracle = Oracle.wrap(layer)
    noise = oracle.noise()
    assert noise.sigma < 1e-14
    assert noise.rounding == "float64"
    assert oracle.counts.sequences == 24
    assert oracle.counts.scalars == 24 * 3 * 8


def test_noise_is_measured_to_a_fifth(layer, rng):
    for sigma in (1e-6, 1e-2):
        noise = Oracle.wrap(lambda x, sigma=sigma: layer(x) + sigma * rng.standard_normal(x.shape)).noise(8)
        assert noise.sigma == pytest.approx(sigma, rel=0.2)
        assert not noise.deterministic
        assert noise.max_difference > sigma


@pytest.mark.parametrize(
    ("how", "name", "step"),
    [
        ("none", "float32", 2.0**-23),
        ("float16", "float16", 2.0**-10),
        ("bfloat16", "bfloat16", 2.0**-7),
        ("1", "1 decimals", None),
        ("4", "4 decimals", None),
    ],
)
@pytest.mark.parametrize("container", [np.float32, np.float64])
def test_rounding_is_recognised(layer, how, name, step, container):
    single = layer.astype(np.float32)

    def function(x):
        return rounded(single(x.astype(np.float32)), how).astype(container)

    noise = Oracle.wrap(function).noise(8)
    assert noise.rounding == name
    assert noise.step == pytest.approx(10.0 ** -int(how) if step is None else step * noise.scale)
    assert noise.level >= noise.step / 4


def test_decimals_and_digits_of_doubles(rng):
    values = rng.standard_normal(50) * 10.0 ** rng.integers(-3, 3, 50)
    assert rounding(np.round(values, 7))[0] == "7 decimals"
    digits = np.array([float(f"{value:.5e}") for value in values])
    assert rounding(digits) == ("6 digits", 1e-5, 0.0)
    assert rounding(values)[0] == "float64"


def test_few_different_answers_prove_nothing():
    exact = np.array([0.0, 2.0, -2.0] * 10)
    assert rounding(exact) == ("unknown", 2.0**-52, 0.0)
    assert rounding(exact.astype(np.float32)) == ("unknown", 2.0**-23, 0.0)


def test_dimension_must_be_known(layer):
    with pytest.raises(ValueError, match=r"^dim: "):
        Oracle.wrap(lambda x: x).noise()
