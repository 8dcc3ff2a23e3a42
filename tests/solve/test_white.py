"""White coordinates leave the function as it is, and padded tokens do not enter them."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._attention import Parameters
from attnlearn.data import as_examples
from attnlearn.recovery._statistics import token_support
from attnlearn.solve._white import reduce_to_support, whitening


@pytest.mark.parametrize("dim", [4, 6])
def test_a_layer_on_white_tokens_is_the_same_function(rng, seed, dim):
    layer = AttentionLayer.random(2, 6, bias=True, seed=seed)
    x = rng.standard_normal((300, 5, dim)) @ rng.standard_normal((dim, 6)) + 0.5
    white = whitening(x, None)
    z = white.tokens(x)
    assert z.shape[2] == dim
    np.testing.assert_allclose(z.reshape(-1, dim).T @ z.reshape(-1, dim) / (300 * 5), np.eye(dim), atol=1e-8)
    inside = AttentionLayer(*white.enter(layer.parameters))
    np.testing.assert_allclose(inside(z), layer(x), atol=1e-9)
    back = AttentionLayer(*white.leave(Parameters(*inside.parameters)))
    np.testing.assert_allclose(back(x), layer(x), atol=1e-9)


def test_padded_tokens_do_not_enter_the_covariance(rng):
    x, mask = rng.standard_normal((50, 4, 3)), np.ones((50, 4), bool)
    mask[:, 3] = False
    x[~mask] = 1e6
    np.testing.assert_allclose(whitening(x, mask).mean, x[:, :3].reshape(-1, 3).mean(axis=0))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_solvers_see_the_directions_that_the_signals_see(rng, dtype):
    x = rng.standard_normal((400, 4, 6)) @ np.linalg.qr(rng.standard_normal((6, 6)))[0]
    for small in (1.0, 1e-3, 1e-5):
        tokens = (x * np.array([1, 1, 1, 1, 1, small])).astype(dtype)
        assert whitening(tokens, None).directions == 6
        assert token_support(as_examples(tokens, tokens), np.arange(400)).directions == 6
    flat = (x[..., :5] @ rng.standard_normal((5, 6))).astype(dtype)
    assert whitening(flat, None).directions == 5


def test_white_float32_tokens_keep_their_digits_where_variance_is_small(rng):
    x = (rng.standard_normal((300, 4, 3)) * np.array([1, 1, 1e-4]) @ rng.standard_normal((3, 3))).astype(
        np.float32
    )
    white = whitening(x, None)
    exact = (x.astype(np.float64) - white.mean) @ white.inverse.T
    assert white.tokens(x).dtype == np.float32
    assert np.abs(white.tokens(x) - exact).max() < 1e-6


def test_a_reduced_layer_is_the_same_function_on_its_support(rng, seed):
    layer = AttentionLayer.random(2, 6, bias=True, seed=seed)
    x = rng.standard_normal((50, 5, 4)) @ rng.standard_normal((4, 6)) + 0.5
    reduced, tokens = reduce_to_support(layer, x, whitening(x, None).support)
    assert reduced.dim == tokens.shape[2] == 4
    np.testing.assert_allclose(reduced(tokens), layer(x), atol=1e-9)
