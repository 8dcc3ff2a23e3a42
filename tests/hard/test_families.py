"""The hard families compute what their formulas say, on every pattern of bits."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, hard


@pytest.mark.parametrize("num_heads", [2, 4, 6, 8])
def test_parity_is_exact_on_all_patterns(num_heads: int, seed: int) -> None:
    dim = num_heads + 3
    subset = hard.parity_subset(dim, num_heads, seed)
    x = hard.all_patterns(dim)
    bits = x[:, 0] * x[:, 1]
    parity = bits[:, list(subset)].prod(axis=1)
    expected = np.zeros_like(x)
    expected[:, 0, -1] = (x[:, 0, -1] - x[:, 1, -1]) * (bits[:, -2] == -1) * (parity - 1)
    expected[:, 1, -1] = -expected[:, 0, -1]
    layer = hard.parity(dim, num_heads, seed=seed)
    np.testing.assert_allclose(layer(x), expected, atol=1e-9)
    assert set(np.unique(np.abs(layer.w))) == {0.0, 2.0}


def test_odd_subset_takes_one_more_head() -> None:
    x = hard.all_patterns(7)
    layer = hard.parity(7, 4, subset=(0, 2, 3))
    parity = x[:, 1, [0, 2, 3]].prod(axis=1)
    np.testing.assert_allclose(
        layer(x)[:, 0, -1], (1 - x[:, 1, -1]) * (x[:, 1, -2] == -1) * (parity - 1), atol=1e-9
    )


@pytest.mark.parametrize("modulus", [2, 4, 6])
def test_rounding_is_a_square_wave(modulus: int, seed: int) -> None:
    dim, num_heads = 7, 6
    secret = np.random.default_rng(seed).integers(0, modulus, dim - 2)
    layer = hard.rounding(dim, num_heads, modulus, secret=secret.tolist())
    x = hard.all_patterns(dim)
    x = x[x[:, 1, -2] == -1]
    form = ((1 - x[:, 1, :-2]) / 2) @ secret
    x, form = (
        x[form <= hard.rounding_reach(num_heads, modulus)],
        form[form <= hard.rounding_reach(num_heads, modulus)],
    )
    wave = np.where(np.floor(form / (modulus / 2)) % 2 == 0, 1.0, -1.0)
    np.testing.assert_allclose(layer(x)[:, 0, -1], (1 - x[:, 1, -1]) * (wave - 1), atol=1e-9)


@pytest.mark.parametrize("kind", hard.DEGENERACIES)
def test_near_degenerate_reaches_its_degeneracy(kind: str) -> None:
    layer = hard.near_degenerate(kind, 6, 3, distance=0.0)
    broken = {
        "close-heads": lambda: layer.canonical().num_heads == 2,
        "cancelling-projections": lambda: np.allclose(layer.w.sum(axis=0), 0),
        "rank-one": lambda: (np.linalg.svd(layer.theta, compute_uv=False)[:, 1:] < 1e-12).all(),
        "tiny-head": lambda: layer.canonical().num_heads == 2,
        "flat-head": lambda: np.allclose(layer.theta[-1], 0),
    }
    assert broken[kind]()


@pytest.mark.parametrize("distance", [1e-3, 0.1, 0.5])
@pytest.mark.parametrize("kind", hard.DEGENERACIES)
def test_near_degenerate_is_as_near_as_it_says(kind: str, distance: float, seed: int) -> None:
    layer = hard.near_degenerate(kind, 6, 3, distance=distance, seed=seed)
    whole = AttentionLayer.random(3, 6, seed=seed)

    def norm(matrix: np.ndarray) -> float:
        return float(np.linalg.norm(matrix))

    measured = {
        "close-heads": lambda: norm(layer.theta[1] - layer.theta[0]) / norm(layer.theta[0]),
        "cancelling-projections": lambda: norm(layer.w.sum(axis=0)) / norm(whole.w[-1]),
        "rank-one": lambda: (
            np.divide(*np.linalg.svd(layer.theta[0], compute_uv=False)[[1, 0]])
            / np.divide(*np.linalg.svd(whole.theta[0], compute_uv=False)[[1, 0]])
        ),
        "tiny-head": lambda: norm(layer.w[-1]) / norm(whole.w[-1]),
        "flat-head": lambda: norm(layer.theta[-1]) / norm(whole.theta[-1]),
    }
    assert measured[kind]() == pytest.approx(distance)


@pytest.mark.parametrize("modulus", [4, 8])
def test_learning_with_rounding_is_exact_for_every_vector(modulus: int, seed: int) -> None:
    """Row 1 shows the highest bit of <a, s> mod q for every a, with as many heads as the formula allows."""
    length, bits = 2, modulus.bit_length() - 1
    secret = np.random.default_rng(seed).integers(1, modulus, length)
    layer = hard.learning_with_rounding(secret.tolist(), modulus)
    assert layer.num_heads <= hard.lwr_heads(length, modulus) <= 2 * length * bits
    x = hard.all_patterns(layer.dim)
    x = x[x[:, 1, -2] == -1]
    ones = (x[:, 1, :-2] < 0).reshape(-1, length, bits)
    form = (ones @ (1 << np.arange(bits))) @ secret % modulus
    sign = np.where(form < modulus // 2, 1.0, -1.0)
    np.testing.assert_allclose(layer(x)[:, 0, -1], (1 - x[:, 1, -1]) * (sign - 1), atol=1e-9)


def test_the_dial_has_exact_ends_and_moves_evenly(seed: int) -> None:
    easy, difficult = AttentionLayer.random(4, 8, seed=seed), hard.parity(8, 4, seed=seed)
    for hardness, end in ((0.0, easy), (1.0, difficult)):
        turned = hard.dial(8, 4, hardness, seed=seed)
        np.testing.assert_allclose(turned.theta, end.theta, atol=1e-12)
        np.testing.assert_allclose(turned.w, end.w, atol=1e-12)
    halfway = hard.dial(8, 4, 0.5, seed=seed)
    size = np.linalg.norm(halfway.theta, axis=(1, 2)) ** 2
    np.testing.assert_allclose(
        size, np.linalg.norm(easy.theta, axis=(1, 2)) * np.linalg.norm(difficult.theta, axis=(1, 2))
    )


def test_bad_parameters_are_named() -> None:
    with pytest.raises(ValueError, match="num_heads: must be even"):
        hard.parity(8, 3)
    with pytest.raises(ValueError, match="kind: must be one of"):
        hard.near_degenerate("sideways", 4, 2, 0.1)
    with pytest.raises(ValueError, match="secret: must hold"):
        hard.rounding(6, 2, 4, secret=(9, 9, 9, 9))
