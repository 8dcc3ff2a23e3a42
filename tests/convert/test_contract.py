"""One contract over all layouts: round trip, permuted heads, key biases, the source's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlearn import AttentionLayer, convert, distance
from attnlearn.convert._check import layer_forward

from .sources import attention, random_arrays, relative, same_layer

KINDS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")


class Case(NamedTuple):
    """A layout: how to write a layer and read it back, and how to store per-head arrays."""

    write: Callable
    read: Callable
    store: Callable  # per-head arrays -> what `read` takes
    causal: bool = False
    grouped: bool = True


def linear_state(names, prefix=""):
    def store(wq, wk, wv, wo, bq, bk, bv, bo):
        stacked = [np.concatenate(list(np.swapaxes(w, 1, 2))) for w in (wq, wk, wv)]
        weights = [*stacked, np.concatenate(list(wo)).T]
        biases = [np.concatenate(list(b)) for b in (bq, bk, bv)] + [bo]
        state = {f"{prefix}{name}.weight": w for name, w in zip(names, weights, strict=True)}
        return state | {f"{prefix}{name}.bias": b for name, b in zip(names, biases, strict=True)}

    return store


def torch_state(*arrays):
    state = linear_state("qkvo")(*arrays)
    return {
        "in_proj_weight": np.concatenate([state[f"{p}.weight"] for p in "qkv"]),
        "in_proj_bias": np.concatenate([state[f"{p}.bias"] for p in "qkv"]),
        "out_proj.weight": state["o.weight"],
        "out_proj.bias": state["o.bias"],
    }


def gpt2_state(*arrays):
    state = linear_state("qkvo")(*arrays)
    return {
        "attn.c_attn.weight": np.concatenate([state[f"{p}.weight"].T for p in "qkv"], axis=1),
        "attn.c_attn.bias": np.concatenate([state[f"{p}.bias"] for p in "qkv"]),
        "attn.c_proj.weight": state["o.weight"].T,
        "attn.c_proj.bias": state["o.bias"],
    }


def lens_state(*arrays):
    return {
        f"{kind[0].upper() if kind[0] == 'w' else 'b'}_{kind[1].upper()}": a for kind, a in zip(KINDS, arrays)
    }


def hugging(state, m):
    return convert.from_huggingface(state, num_heads=m)


BERT = ("self.query", "self.key", "self.value", "output.dense")
ALBERT = ("query", "key", "value", "dense")
VIT = ("attention.query", "attention.key", "attention.value", "output.dense")
CASES = {
    "qkvo": Case(convert.to_qkvo, lambda s, m: convert.from_qkvo(*s), lambda *a: a),
    "torch": Case(convert.to_torch_state, hugging, torch_state, grouped=False),
    "bert": Case(convert.to_bert, hugging, linear_state(BERT, "attention.")),
    "albert": Case(
        lambda layer: convert.to_bert(layer, names="albert"), hugging, linear_state(ALBERT, "attention.")
    ),
    "vit": Case(lambda layer: convert.to_bert(layer, names="vit"), hugging, linear_state(VIT, "attention.")),
    "o_proj": Case(
        lambda layer: convert.to_qkv_proj(layer, prefix="layers.0.self_attn."),
        hugging,
        linear_state(("q_proj", "k_proj", "v_proj", "o_proj"), "layers.0.self_attn."),
    ),
    "out_proj": Case(
        lambda layer: convert.to_qkv_proj(layer, output="out_proj"),
        hugging,
        linear_state(("q_proj", "k_proj", "v_proj", "out_proj")),
    ),
    "gpt2": Case(convert.to_gpt2, hugging, gpt2_state, causal=True, grouped=False),
    "transformer_lens": Case(
        convert.to_transformer_lens,
        lambda s, m: convert.from_transformer_lens(**s, causal=False),
        lens_state,
    ),
}


@pytest.fixture(params=CASES, ids=str)
def case(request) -> Case:
    return CASES[request.param]


# A random query bias lies outside the keys' space and adds one to the rank: 2 + 1 fills heads of 12 / 4.
def test_round_trip_in_float64(case, seed):
    layer = AttentionLayer.random(4, 12, rank=2, bias=True, seed=seed, causal=case.causal)
    assert same_layer(case.read(case.write(layer), 4), layer, 1e-12)


def test_round_trip_in_float32_stays_float32(case, seed):
    layer = AttentionLayer.random(4, 12, rank=2, bias=True, seed=seed, causal=case.causal).astype(np.float32)
    back = case.read(case.write(layer), 4)
    assert back.dtype == np.float32
    assert same_layer(back, layer, 2e-5)


def test_reads_what_its_source_stores(case, rng):
    arrays = random_arrays(rng)
    layer = case.read(case.store(*arrays), 4)
    x = rng.standard_normal((3, 6, 12))
    assert layer.causal == case.causal
    assert relative(layer(x), attention(x, *arrays, scale=3**-0.5, causal=case.causal)) < 1e-12


def test_permuted_heads_change_nothing(case, rng):
    arrays = random_arrays(rng)
    order = [2, 0, 3, 1]
    moved = [array[order] for array in arrays[:-1]] + arrays[-1:]
    a, b = case.read(case.store(*arrays), 4), case.read(case.store(*moved), 4)
    assert distance(a, b).max < 1e-12
    x = rng.standard_normal((2, 5, 12))
    assert relative(a(x), b(x)) < 1e-12


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_any_key_bias_changes_nothing(case, rng, size):
    arrays = random_arrays(rng)
    plain = case.read(case.store(*arrays), 4)
    arrays[5] = arrays[5] + size * rng.standard_normal(arrays[5].shape)
    assert case.read(case.store(*arrays), 4) == plain


def test_grouped_query_heads_are_expanded(case, rng):
    if not case.grouped:
        pytest.skip("this layout stores as many key heads as query heads")
    arrays = random_arrays(rng, m=4, h=2)
    layer = case.read(case.store(*arrays), 4)
    x = rng.standard_normal((2, 5, 12))
    assert layer.num_heads == 4
    assert relative(layer(x), attention(x, *arrays, scale=3**-0.5, causal=case.causal)) < 1e-12


def test_exported_factors_are_balanced(seed):
    layer = AttentionLayer.random(3, 9, rank=3, bias=True, seed=seed)
    wq, wk, wv, wo, bq, *_ = convert.to_qkvo(layer)
    assert wq.shape == (3, 9, 4)
    for i in range(3):
        np.testing.assert_allclose(wq[i].T @ wq[i] + np.outer(bq[i], bq[i]), wk[i].T @ wk[i], atol=1e-12)
        np.testing.assert_allclose(wv[i].T @ wv[i], wo[i] @ wo[i].T, atol=1e-12)


@pytest.mark.parametrize("scale", [None, 1.0, 0.125])
def test_any_scale_round_trips(scale, seed):
    layer = AttentionLayer.random(3, 9, rank=3, bias=True, seed=seed)
    arrays = convert.to_qkvo(layer, scale=scale)
    assert arrays.scale == (0.5 if scale is None else scale)
    assert same_layer(convert.from_qkvo(*arrays), layer, 1e-12)


def test_flat_arrays_need_and_use_the_head_count(rng):
    arrays = random_arrays(rng, m=4, h=2, r=3, s=2, o=7)
    wide = [np.concatenate(list(w), axis=1) for w in arrays[:3]] + [np.concatenate(list(arrays[3]))]
    biases = [b.ravel() for b in arrays[4:7]] + arrays[7:]
    assert same_layer(convert.from_qkvo(*wide, *biases, num_heads=4), convert.from_qkvo(*arrays), 1e-14)
    with pytest.raises(ValueError, match=r"num_heads: must be given.*never guessed"):
        convert.from_qkvo(*wide, *biases)


@settings(max_examples=40, deadline=None)
@given(
    heads=st.integers(1, 4),
    groups=st.integers(1, 3),
    sizes=st.tuples(*[st.integers(1, 6)] * 4),
    dtype=st.sampled_from([np.float64, np.float32]),
    causal=st.booleans(),
    number=st.integers(0, 2**16),
)
def test_any_shape_agrees_with_the_textbook(heads, groups, sizes, dtype, causal, number):
    d, r, s, o = sizes
    rng = np.random.default_rng(number)
    arrays = [a.astype(dtype) for a in random_arrays(rng, m=heads * groups, h=heads, d=d, r=r, s=s, o=o)]
    layer = convert.from_qkvo(*arrays, scale=0.3, causal=causal)
    assert layer.dtype == dtype
    x = rng.standard_normal((1, 4, d))
    wanted = attention(x, *[a.astype(np.float64) for a in arrays], scale=0.3, causal=causal)
    ours = np.stack([layer_forward(layer, tokens) for tokens in x])
    assert np.abs(ours - wanted).max() <= 50 * np.finfo(dtype).eps * max(1, np.abs(wanted).max())


def test_lens_scores_are_divided_once(rng):
    wq, wk, wv, wo, *_ = random_arrays(rng)
    layer = convert.from_transformer_lens(wq, wk, wv, wo, causal=True, attn_scale=5.0)
    np.testing.assert_allclose(layer.theta, wq @ np.swapaxes(wk, 1, 2) / 5, atol=1e-14)
    assert layer.causal


def test_output_dimension_may_differ(rng):
    arrays = random_arrays(rng, o=5)
    layer = convert.from_qkvo(*arrays)
    assert layer.out_dim == 5
    state = convert.to_qkv_proj(layer)
    assert same_layer(convert.from_huggingface(state, num_heads=4), layer, 1e-12)


def test_a_broken_converter_is_caught(rng, monkeypatch):
    """The self-check is able to fail: a converter that forgets the transpose does not get away with it."""
    from attnlearn.convert import _projections

    original = _projections.from_qkvo
    monkeypatch.setattr(
        _projections, "from_qkvo", lambda wq, wk, wv, wo, *rest, **kw: original(wq, wk.T, wv, wo, *rest, **kw)
    )
    state = CASES["o_proj"].store(*random_arrays(rng))
    with pytest.raises(Exception, match="self-check failed"):
        convert.from_huggingface(state, num_heads=4)
