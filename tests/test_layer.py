"""The layer: its function, its invariances, its immutability and how it refuses bad input."""

from __future__ import annotations

import pickle

import hypothesis.extra.numpy as hnp
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlearn import AttentionLayer, load
from attnlearn._attention import chunk_size
from attnlearn._summary import summarize

REAL = ["sapiens-vh-layer0", "sapiens-vh-layer3", "rxnmapper-layer"]


def direct(layer: AttentionLayer, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """The formula of the layer, head by head and sequence by sequence."""
    outputs = np.zeros((*x.shape[:2], layer.out_dim), x.dtype)
    for n, tokens in enumerate(x):
        allowed = np.ones((len(tokens), len(tokens)), bool)
        if layer.causal:
            allowed = np.tril(allowed)
        if mask is not None:
            allowed &= mask[n][None, :]
        for theta, w, c in zip(layer.theta, layer.w, layer.query_bias):
            scores = np.where(allowed, tokens @ theta @ tokens.T + (tokens @ c)[None, :], -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs[n] += weights / weights.sum(axis=1, keepdims=True) @ tokens @ w
        outputs[n] += layer.output_bias
        if mask is not None:
            outputs[n][~mask[n]] = 0
    return outputs


@given(
    n=st.integers(0, 5), k=st.integers(1, 6), d=st.integers(1, 7), o=st.integers(1, 5), m=st.integers(1, 4),
    causal=st.booleans(), masked=st.booleans(), dtype=st.sampled_from([np.float32, np.float64]), data=st.data(),
)  # fmt: skip
@settings(max_examples=15, deadline=None)  # every example compiles a shape of its own
def test_forward_is_the_formula(n, k, d, o, m, causal, masked, dtype, data) -> None:
    floats = st.floats(-2, 2, width=32)

    def draw(*shape):
        return data.draw(hnp.arrays(dtype, shape, elements=floats))

    layer = AttentionLayer(draw(m, d, d), draw(m, d, o), draw(m, d), draw(o), causal=causal)
    x = draw(n, k, d)
    mask = None
    if masked:
        mask = data.draw(hnp.arrays(bool, (n, k)))
        mask[:, 0] = True
    result = layer(x, mask)
    assert result.dtype == dtype
    assert result.shape == (n, k, o)
    tolerance = 1e-12 if dtype == np.float64 else 2e-4
    np.testing.assert_allclose(result, direct(layer, x, mask), atol=tolerance)


@pytest.mark.parametrize("name", REAL)
def test_real_layers_forward_in_float64(name: str, layers, rng) -> None:
    layer = load(layers / f"{name}.safetensors").astype(np.float64)
    x = rng.standard_normal((3, 5, layer.dim))
    np.testing.assert_allclose(layer(x), direct(layer, x), rtol=1e-12, atol=1e-12)


def test_permuting_heads_changes_nothing(seed: int, rng) -> None:
    layer = AttentionLayer.random(4, 6, bias=True, seed=seed)
    order = rng.permutation(4)
    moved = layer.replace(theta=layer.theta[order], w=layer.w[order], query_bias=layer.query_bias[order])
    x = rng.standard_normal((3, 4, 6))
    np.testing.assert_allclose(layer(x), moved(x), atol=1e-13)
    assert moved.canonical() == layer.canonical()


def test_single_sequences_chunks_and_batches_agree(rng, monkeypatch) -> None:
    layer = AttentionLayer.random(2, 5)
    x = rng.standard_normal((37, 4, 5))
    whole = layer(x)
    np.testing.assert_allclose(np.stack([layer(sequence) for sequence in x]), whole, atol=1e-13)
    monkeypatch.setattr("attnlearn._attention.CHUNK_BYTES", 4096)
    np.testing.assert_allclose(layer(x), whole, atol=1e-13)
    assert chunk_size(4, 5, 2, 8) < 37


def test_padding_is_invisible(rng) -> None:
    layer = AttentionLayer.random(2, 5, bias=True)
    x = rng.standard_normal((6, 4, 5))
    padded = np.concatenate([x, 1e3 * rng.standard_normal((6, 3, 5))], axis=1)
    mask = np.arange(7) < np.full((6, 1), 4)
    outputs = layer(padded, mask)
    np.testing.assert_allclose(outputs[:, :4], layer(x), atol=1e-12)
    assert not outputs[:, 4:].any()


def test_causal_rows_see_only_the_past(rng) -> None:
    layer = AttentionLayer.random(2, 5, causal=True)
    x = rng.standard_normal((2, 4, 5))
    changed = x.copy()
    changed[:, 3] += 1
    np.testing.assert_array_equal(layer(x)[:, :3], layer(changed)[:, :3])
    assert np.allclose(np.triu(layer.patterns(x)[0, 0], 1), 0)


def test_patterns_and_scores_match(rng) -> None:
    layer = AttentionLayer.random(3, 5, bias=True)
    x = rng.standard_normal((4, 6, 5))
    scores = layer.scores(x)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(layer.patterns(x), weights / weights.sum(-1, keepdims=True), atol=1e-13)


def test_merging_zero_and_equal_heads_keeps_the_function(rng) -> None:
    layer = AttentionLayer.random(3, 4, bias=True)
    bigger = AttentionLayer(
        np.concatenate([layer.theta, layer.theta[:1], layer.theta[:1] * 3]),
        np.concatenate([layer.w, layer.w[:1] * 0.5, np.zeros((1, 4, 4))]),
        np.concatenate([layer.query_bias, layer.query_bias[:1], layer.query_bias[:1]]),
        layer.output_bias,
    )
    x = rng.standard_normal((3, 5, 4))
    assert bigger.canonical().num_heads == 3
    np.testing.assert_allclose(bigger.canonical()(x), bigger(x), atol=1e-12)


def test_factors_rebuild_the_layer(seed: int) -> None:
    layer = AttentionLayer.random(3, 8, rank=2, seed=seed)
    bias = np.einsum("mde,m->me", layer.theta, np.ones(3))  # inside the key space
    layer = layer.replace(query_bias=bias)
    factors = layer.factors()
    np.testing.assert_allclose(factors.query @ factors.key.swapaxes(1, 2), layer.theta, atol=1e-12)
    np.testing.assert_allclose(factors.value @ factors.output, layer.w, atol=1e-12)
    np.testing.assert_allclose(np.einsum("mdr,mr->md", factors.key, factors.query_bias), bias, atol=1e-12)
    with pytest.raises(ValueError, match="rank: must be at least 2"):
        layer.factors(rank=1)


def test_random_has_the_promised_norms(seed: int) -> None:
    layer = AttentionLayer.random(4, 12, rank=3, scale=1.5, seed=seed)
    np.testing.assert_allclose(np.linalg.norm(layer.theta, axis=(1, 2)), 1.5)
    np.testing.assert_allclose(np.linalg.norm(layer.w, axis=(1, 2)), np.sqrt(12 / 4))
    assert [head.theta_rank for head in summarize(layer)] == [3] * 4
    assert layer == AttentionLayer.random(4, 12, rank=3, scale=1.5, seed=seed)
    assert layer != AttentionLayer.random(4, 12, rank=3, scale=1.5, seed=seed + 1)


def test_it_is_an_immutable_pytree() -> None:
    layer = AttentionLayer.random(2, 3)
    with pytest.raises(AttributeError, match="immutable"):
        layer.causal = True
    with pytest.raises(ValueError, match="read-only"):
        layer.theta[0] = 0
    leaves, structure = jax.tree.flatten(layer)
    assert len(leaves) == 4
    assert jax.tree.unflatten(structure, leaves) == layer
    assert pickle.loads(pickle.dumps(layer)) == layer
    assert "<table>" in layer._repr_html_()


def test_save_and_load(tmp_path) -> None:
    layer = AttentionLayer.random(2, 3, bias=True, causal=True).astype(np.float32)
    layer.save(tmp_path / "layer.safetensors", provenance={"note": "test"})
    assert AttentionLayer.load(tmp_path / "layer.safetensors") == layer
    assert load(tmp_path / "layer.safetensors") == layer


X = np.zeros((2, 3, 4))
LAYER = AttentionLayer.random(2, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LAYER(np.full((2, 3, 4), np.nan)), "x: must be finite, got nan at index"),
        (lambda: LAYER(np.where(np.arange(4) == 1, np.inf, X)), "x: must be finite, got inf"),
        (lambda: LAYER(X[0, 0]), "x: must have shape"),
        (lambda: LAYER(X.swapaxes(1, 2)), "x: must have shape"),
        (lambda: LAYER(X.astype(complex)), "x: must be float32 or float64"),
        (lambda: LAYER(X[:, :0]), "x: must hold at least one token"),
        (lambda: LAYER(X, np.ones((2, 3))), "mask: must be boolean"),
        (lambda: LAYER(X, np.zeros((2, 3), bool)), "mask: must keep at least one token"),
        (lambda: LAYER("tokens"), "x: must be an array"),
        (lambda: AttentionLayer(np.zeros((2, 3, 4)), np.zeros((2, 3, 4))), "theta: must have shape"),
        (lambda: AttentionLayer(np.zeros((2, 4, 4)), np.zeros((3, 4, 4))), "w: must have shape"),
        (lambda: AttentionLayer(LAYER.theta, LAYER.w, np.zeros(4)), "query_bias: must have shape"),
        (lambda: AttentionLayer.random(0, 4), "num_heads: must be >= 1, got 0"),
        (lambda: AttentionLayer.random(2, 4, rank=5), "rank: must be between 1 and dim = 4, got 5"),
    ],
)
def test_bad_input_gets_one_line_naming_the_parameter(call, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
