"""White coordinates leave the function as it is, and padded tokens do not enter them."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._attention import Parameters
from attnlearn.solve._white import whitening


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
