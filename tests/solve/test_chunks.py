"""Chunks hold every example once, sums do not depend on them, and white coordinates leave the function as it is."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._attention import Parameters
from attnlearn.solve import _chunks
from attnlearn.solve._chunks import added, cut, whitening


def test_every_example_is_in_one_chunk(rng, monkeypatch):
    monkeypatch.setattr(_chunks, "CHUNK_ROWS", 20)
    x, y = rng.standard_normal((33, 4, 3)), rng.standard_normal((33, 4, 2))
    chunks = cut(x, y, None)
    assert len(chunks) == 7
    np.testing.assert_array_equal(np.concatenate([chunk.x for chunk in chunks]), x)
    np.testing.assert_array_equal(np.concatenate([chunk.y for chunk in chunks]), y)
    assert chunks.rows == chunks.real == 33 * 4


def test_padded_tokens_are_zero_and_not_counted(rng):
    x, mask = rng.standard_normal((10, 4, 3)), rng.random((10, 4)) < 0.5
    chunks = cut(x, x, mask)
    assert chunks.real == mask.sum()
    assert all(not chunk.x[chunk.keep == 0].any() and not chunk.y[chunk.keep == 0].any() for chunk in chunks)
    assert chunks.astype(np.float32).dtype == np.float32


def test_sums_are_in_the_memory_of_the_first(rng):
    first = np.ones(3)
    assert added([first, np.full(3, 2.0)]) is first
    assert first.tolist() == [3.0, 3.0, 3.0]


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
