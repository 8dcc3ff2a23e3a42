"""The linear-attention layer: its formula, masks, files."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from attnlearn import AttentionLayer, LinearAttentionLayer


def by_hand(layer, x, mask=None):
    """F(X)_a = sum_i (x_a^T Theta_i + c_i^T) G_a W_i + b, one row at a time."""
    n, k, _ = x.shape
    y = np.zeros((n, k, layer.out_dim))
    for s in range(n):
        for a in range(k):
            if mask is not None and not mask[s, a]:
                continue
            seen = [b for b in range(k) if (mask is None or mask[s, b]) and (b <= a or not layer.causal)]
            gram = sum(np.outer(x[s, b], x[s, b]) for b in seen)
            y[s, a] = layer.output_bias
            for theta, w, c in zip(layer.theta, layer.w, layer.query_bias):
                y[s, a] += (x[s, a] @ theta + c) @ gram @ w
    return y


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_call_is_the_formula(rng, causal, masked):
    layer = LinearAttentionLayer.random(3, 5, rank=2, bias=True, seed=1, causal=causal)
    x = rng.standard_normal((4, 6, 5))
    mask = np.arange(6) < rng.integers(2, 7, (4, 1)) if masked else None
    assert np.allclose(layer(x, mask), by_hand(layer, x, mask), atol=1e-12)
    assert np.allclose(layer(x[0]), layer(x[:1])[0], atol=1e-12)


def test_files_keep_the_kind_apart(tmp_path):
    path = tmp_path / "layer.safetensors"
    layer = LinearAttentionLayer.random(2, 4, bias=True)
    layer.save(path)
    assert LinearAttentionLayer.load(path) == layer
    assert pickle.loads(pickle.dumps(layer)) == layer
    with pytest.raises(ValueError, match="must be a layer saved by attnlearn"):
        AttentionLayer.load(path)
    AttentionLayer(*layer.parameters).save(path)
    with pytest.raises(ValueError, match="must be a linear-attention layer"):
        LinearAttentionLayer.load(path)
    assert layer != AttentionLayer(*layer.parameters)


def test_it_is_checked_like_an_attention_layer():
    with pytest.raises(ValueError, match="theta: must have shape"):
        LinearAttentionLayer(np.ones((2, 3)), np.ones((2, 3, 3)))
    with pytest.raises(ValueError, match="x: must have shape"):
        LinearAttentionLayer.random(2, 4)(np.ones((2, 3, 5)))
    assert LinearAttentionLayer.random(2, 4).astype(np.float32).dtype == np.float32
    assert LinearAttentionLayer.random(2, 4).replace(causal=True).causal
    with pytest.raises(ValueError, match="layer: must have no positions, window or prefix"):
        LinearAttentionLayer.random(2, 4).replace(window=2)
    with pytest.raises(AttributeError, match="LinearAttentionLayer is immutable"):
        LinearAttentionLayer.random(2, 4).w = None
