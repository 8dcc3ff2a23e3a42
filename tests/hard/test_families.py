"""The hard families compute what their formulas say, on every pattern of bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnlearn import hard


def all_pairs(dim: int) -> np.ndarray:
    """Every pattern of bits b, as two tokens: x_1 = 1 up to the sign of the read-out, x_2 = b x_1."""
    bits = np.array(list(itertools.product((1.0, -1.0), repeat=dim)))
    return np.stack([np.ones_like(bits), bits], axis=1)


@pytest.mark.parametrize("num_heads", [2, 4, 6, 8])
def test_parity_is_exact_on_all_patterns(num_heads: int, seed: int) -> None:
    dim = num_heads + 3
    subset = hard.parity_subset(dim, num_heads, seed)
    x = all_pairs(dim)
    bits = x[:, 0] * x[:, 1]
    parity = bits[:, list(subset)].prod(axis=1)
    expected = np.zeros_like(x)
    expected[:, 0, -1] = (x[:, 0, -1] - x[:, 1, -1]) * (bits[:, -2] == -1) * (parity - 1)
    expected[:, 1, -1] = -expected[:, 0, -1]
    layer = hard.parity(dim, num_heads, seed=seed)
    np.testing.assert_allclose(layer(x), expected, atol=1e-9)
    assert set(np.unique(np.abs(layer.w))) == {0.0, 2.0}


def test_odd_subset_takes_one_more_head() -> None:
    x = all_pairs(7)
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
    x = all_pairs(dim)
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


def test_bad_parameters_are_named() -> None:
    with pytest.raises(ValueError, match="num_heads: must be even"):
        hard.parity(8, 3)
    with pytest.raises(ValueError, match="kind: must be one of"):
        hard.near_degenerate("sideways", 4, 2, 0.1)
    with pytest.raises(ValueError, match="secret: must hold"):
        hard.rounding(6, 2, 4, secret=(9, 9, 9, 9))
