"""What a converter cannot represent or does not know is refused in one line; nothing is filled in."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, convert

from .sources import random_arrays

LAYER = AttentionLayer.random(2, 6, rank=2, bias=True)


def proj_state(prefix="model.layers.0.self_attn."):
    return convert.to_qkv_proj(LAYER, prefix=prefix)


STRANGERS = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": "RoPE",
    "model.rotary_emb.inv_freq": "RoPE",
    "model.layers.0.self_attn.alibi": "ALiBi",
    "model.layers.0.self_attn.relative_attention_bias.weight": "relative positions",
    "model.layers.3.relative_attention_bias.weight": "relative positions",
    "model.layers.0.self_attn.q_norm.weight": "QK-norm",
    "model.layers.0.self_attn.k_layernorm.weight": "QK-norm",
    "model.layers.0.self_attn.sinks": "sinks",
    "model.layers.0.self_attn.bias_k": "add_bias_kv",
    "model.layers.0.self_attn.logit_scale": "cosine",
    "model.layers.0.self_attn.gate.weight": "gated",
    "model.layers.0.self_attn.q_proj.lora_A.weight": "unknown",
}


@pytest.mark.parametrize(("name", "word"), STRANGERS.items(), ids=list(STRANGERS))
def test_tensor_names(name, word):
    with pytest.raises(ValueError, match=word) as error:
        convert.from_huggingface(proj_state() | {name: np.ones(3)}, num_heads=2)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


CONFIGS = [
    ({"model_type": "llama"}, "RoPE"),
    ({"model_type": "mistral"}, "RoPE"),
    ({"model_type": "bloom"}, "ALiBi"),
    ({"model_type": "t5"}, "relative positions"),
    ({"rope_parameters": {"rope_theta": 1e4}}, "RoPE"),
    ({"rotary_dim": 64}, "RoPE"),
    ({"alibi": True}, "ALiBi"),
    ({"position_embedding_type": "relative_key"}, "relative positions"),
    ({"attn_logit_softcapping": 50.0}, "soft-capped"),
    ({"use_qk_norm": True}, "QK-norm"),
]


@pytest.mark.parametrize(("config", "word"), CONFIGS, ids=[str(c) for c, _ in CONFIGS])
def test_configurations(config, word):
    with pytest.raises(ValueError, match=word):
        convert.from_huggingface(proj_state(), num_heads=2, config=config)


def test_harmless_configuration_is_read():
    config = {"model_type": "bert", "rope_scaling": None, "alibi": False, "num_attention_heads": 2}
    config["position_embedding_type"] = "absolute"
    assert convert.from_huggingface(proj_state(), config=config).num_heads == 2


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "o_proj"])
def test_a_missing_weight_is_named_and_not_filled_in(part):
    state = proj_state()
    del state[f"model.layers.0.self_attn.{part}.weight"]
    with pytest.raises(ValueError, match=part if part != "q_proj" else "known layout"):
        convert.from_huggingface(state, num_heads=2)


@pytest.mark.parametrize("part", ["q_proj", "v_proj"])
def test_a_missing_bias_is_named_and_not_filled_in(part):
    state = proj_state()
    del state[f"model.layers.0.self_attn.{part}.bias"]
    with pytest.raises(ValueError, match="biases on"):
        convert.from_huggingface(state, num_heads=2)


@pytest.mark.parametrize("name", ["query.bias", "value.bias", "value.weight", "key.weight"])
def test_bert_needs_all_it_always_has(name):
    state = convert.to_bert(LAYER)
    del state[f"attention.self.{name}"]
    with pytest.raises(ValueError, match=f"without self.{name}"):
        convert.from_huggingface(state, num_heads=2)


@pytest.mark.parametrize("name", ["in_proj_bias", "out_proj.bias"])
def test_torch_biases_come_together(name):
    state = convert.to_torch_state(LAYER)
    del state[name]
    with pytest.raises(ValueError, match=r"both in_proj_bias and out_proj.bias"):
        convert.from_huggingface(state, num_heads=2)


def test_sources_without_biases_are_read(rng):
    state = {name: array for name, array in proj_state().items() if name.endswith("weight")}
    layer = convert.from_huggingface(state, num_heads=2)
    assert not layer.query_bias.any()
    assert not layer.output_bias.any()


@pytest.mark.parametrize("count", [0, -1, 5, 2.0, True, None])
def test_head_counts(count):
    with pytest.raises(ValueError, match="num_heads"):
        convert.from_huggingface(proj_state(), num_heads=count)


def test_head_count_and_configuration_must_agree():
    with pytest.raises(ValueError, match=r"num_heads: must be 2.* got 3"):
        convert.from_huggingface(proj_state(), num_heads=3, config={"num_attention_heads": 2})
    with pytest.raises(ValueError, match="2 heads of 2 rows"):
        convert.from_huggingface(proj_state(), config={"num_attention_heads": 2, "head_dim": 2})


def test_grouped_heads_must_divide(rng):
    arrays = random_arrays(rng, m=4, h=3)
    with pytest.raises(ValueError, match="wk: must have a number of heads that divides 4"):
        convert.from_qkvo(*arrays)


@pytest.mark.parametrize("block", ["encoder_attn", "crossattention", "cross_attn", "multihead_attn"])
def test_cross_attention(block):
    with pytest.raises(ValueError, match="cross-attention"):
        convert.from_huggingface(proj_state(f"decoder.layers.0.{block}."), num_heads=2)


def test_linear_where_conv1d_is_expected():
    state = convert.to_gpt2(LAYER.replace(causal=True))
    state["attn.c_attn.weight"] = state["attn.c_attn.weight"].T
    with pytest.raises(ValueError, match=r"c_attn.weight: must be .d, 3 d., as Conv1D"):
        convert.from_huggingface(state, num_heads=2)


def test_several_blocks_are_listed_and_prefix_chooses():
    state = (
        proj_state("layers.0.self_attn.")
        | proj_state("layers.10.self_attn.")
        | proj_state("layers.1.self_attn.")
    )
    with pytest.raises(ValueError, match=r"got 3 .*layers.0.self_attn \(qkv_proj\).*layers.10.self_attn"):
        convert.from_huggingface(state, num_heads=2)
    assert convert.from_huggingface(state, num_heads=2, prefix="layers.1").num_heads == 2
    with pytest.raises(ValueError, match=r"prefix: must name one of .*layers.0.self_attn.*got 'layers.7'"):
        convert.from_huggingface(state, num_heads=2, prefix="layers.7")
    with pytest.raises(ValueError, match="prefix: must name one attention block, got 'layers'"):
        convert.from_huggingface(state, num_heads=2, prefix="layers")


@pytest.mark.parametrize(("value", "word"), [(np.nan, "finite"), (np.inf, "finite")], ids=["nan", "inf"])
def test_weights_that_are_not_numbers(value, word):
    state = proj_state()
    state["model.layers.0.self_attn.v_proj.weight"][0, 0] = value
    with pytest.raises(ValueError, match=word):
        convert.from_huggingface(state, num_heads=2)


def test_mixed_dtypes_are_promoted():
    state = proj_state()
    name = "model.layers.0.self_attn.v_proj.weight"
    state[name] = state[name].astype(np.float32)
    assert convert.from_huggingface(state, num_heads=2).dtype == np.float64


def test_objects_that_are_neither_module_nor_state():
    with pytest.raises(ValueError, match="module_or_state: must be a torch module or a mapping"):
        convert.from_huggingface(np.ones(3))


@pytest.mark.parametrize("write", [convert.to_torch_state, convert.to_bert, convert.to_gpt2])
def test_heads_that_do_not_fit_a_layout(write):
    thick = AttentionLayer.random(2, 6, rank=5, causal=True)
    with pytest.raises(ValueError, match=r"rank at most dim / heads = 3 .* got 5"):
        write(thick)
    with pytest.raises(ValueError, match="divides dim = 7"):
        write(AttentionLayer.random(2, 7, rank=2, causal=True))


def test_gpt2_is_causal():
    with pytest.raises(ValueError, match="must be causal"):
        convert.to_gpt2(LAYER)
