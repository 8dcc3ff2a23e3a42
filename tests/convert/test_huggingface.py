"""Hugging Face modules built from small configurations with random weights: layer against own forward."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from attnlearn import AttentionLayer, convert

from .sources import relative, same_layer

torch = pytest.importorskip("torch", reason="torch is an extra")
transformers = pytest.importorskip("transformers", reason="transformers is needed to build its modules")

SMALL = {"hidden_size": 12, "num_attention_heads": 4, "intermediate_size": 8, "num_hidden_layers": 1}
BART = {"d_model": 12, "encoder_attention_heads": 4, "decoder_attention_heads": 4}


def build(kind, config, path, class_name, **options):
    """One attention module of `transformers.models.<path>`, with random weights and biases, in float64."""
    module_path = f"transformers.models.{path}.modeling_{path}"
    cls = getattr(__import__(module_path, fromlist=[class_name]), class_name)
    settings = getattr(transformers, config[0])(**config[1])
    settings._attn_implementation = "eager"
    torch.manual_seed(0)
    given = {"config": settings, "layer_idx": 0, **options}
    accepted = inspect.signature(cls.__init__).parameters
    module = cls(**{name: value for name, value in given.items() if name in accepted})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return module.double()


MODULES = {
    "bert": (("BertConfig", SMALL), "bert", "BertAttention", "output.dense", False),
    "albert": (("AlbertConfig", {**SMALL, "embedding_size": 6}), "albert", "AlbertAttention", "dense", False),
    "roberta": (("RobertaConfig", SMALL), "roberta", "RobertaAttention", "output.dense", False),
    "vit": (("ViTConfig", SMALL), "vit", "ViTAttention", "o_proj", False),
    "gpt2": (
        ("GPT2Config", {"n_embd": 12, "n_head": 4, "n_layer": 1}),
        "gpt2",
        "GPT2Attention",
        "c_proj",
        True,
    ),
    "gpt2 by layer": (
        ("GPT2Config", {"n_embd": 12, "n_head": 4, "scale_attn_by_inverse_layer_idx": True}),
        "gpt2",
        "GPT2Attention",
        "c_proj",
        True,
    ),
    "opt": (("OPTConfig", {**SMALL, "ffn_dim": 8}), "opt", "OPTAttention", "out_proj", True),
    "clip vision": (("CLIPVisionConfig", SMALL), "clip", "CLIPAttention", "out_proj", False),
    "clip text": (("CLIPTextConfig", SMALL), "clip", "CLIPAttention", "out_proj", True),
    "bart": (("BartConfig", BART), "bart", "BartAttention", "out_proj", False),
    "distilbert": (
        ("DistilBertConfig", {"dim": 12, "n_heads": 4, "hidden_dim": 8}),
        "distilbert",
        "DistilBertSelfAttention",
        "out_lin",
        False,
    ),
}


def make(name):
    config, path, cls, output, causal = MODULES[name]
    options = {"embed_dim": 12, "num_heads": 4} if path == "bart" else {}
    options |= {"layer_idx": 1} if name == "gpt2 by layer" else {}
    return build(name, config, path, cls, **options), output, causal


def own_forward(module, output, x, causal):
    captured = []
    handle = module.get_submodule(output).register_forward_hook(lambda _m, _i, out: captured.append(out))
    k = x.shape[1]
    mask = torch.zeros(len(x), 1, k, k, dtype=torch.float64)
    if causal:
        mask += torch.triu(torch.full((k, k), -1e300, dtype=torch.float64), 1)
    with torch.no_grad():
        module.eval()(torch.from_numpy(x), attention_mask=mask)
    handle.remove()
    return captured[0].numpy()


@pytest.mark.parametrize("name", MODULES)
def test_the_layer_equals_the_module(name, rng):
    module, output, causal = make(name)
    layer = convert.from_huggingface(module)
    x = rng.standard_normal((3, 7, 12))
    assert layer.causal == causal
    # OPT, CLIP and others take the softmax in float32 whatever their weights.
    assert relative(layer(x), own_forward(module, output, x, causal)) < 2e-7


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_a_block_that_normalises_first_and_may_rotate(positions, rng):
    settings = {**SMALL, "position_embedding_type": positions, "vocab_size": 9, "pad_token_id": 1}
    module = build("esm", ("EsmConfig", settings), "esm", "EsmAttention")
    if positions == "rotary":
        with pytest.raises(ValueError, match="RoPE"):
            convert.from_huggingface(module)
        return
    x = rng.standard_normal((3, 7, 12))
    with torch.no_grad():
        y = module.output.dense(module.eval().self(torch.from_numpy(x))[0]).numpy()
    assert relative(convert.from_huggingface(module)(x), y) < 2e-7


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "opt", "distilbert"])
def test_the_state_gives_the_same_layer_as_the_module(name):
    module, _, causal = make(name)
    state = convert.from_huggingface(module.state_dict(), num_heads=4, causal=causal)
    assert state == convert.from_huggingface(module)


def test_a_block_of_a_whole_model(rng):
    torch.manual_seed(0)
    model = transformers.BertModel(
        transformers.BertConfig(**{**SMALL, "num_hidden_layers": 2}, vocab_size=11)
    )
    with pytest.raises(
        ValueError, match=r"encoder.layer.0.attention \(bert\), encoder.layer.1.attention \(bert\)"
    ):
        convert.from_huggingface(model)
    layer = convert.from_huggingface(model, prefix="encoder.layer.1")
    attention = model.encoder.layer[1].attention
    assert layer == convert.from_huggingface(attention)
    assert layer.dtype == np.float32


@pytest.mark.parametrize("names", ["bert", "albert"])
def test_to_bert_loads_into_the_module(names, seed, rng):
    layer = AttentionLayer.random(4, 12, rank=2, bias=True, seed=seed)
    module, output, _ = make(names)
    state = {k: torch.from_numpy(v) for k, v in convert.to_bert(layer, names=names, prefix="").items()}
    missing = module.load_state_dict(state, strict=False)
    assert all("LayerNorm" in name for name in missing.missing_keys)
    assert not missing.unexpected_keys
    x = rng.standard_normal((2, 5, 12))
    assert relative(own_forward(module, output, x, False), layer(x)) < 2e-7
    assert same_layer(convert.from_huggingface(module), layer, 1e-12)


@pytest.mark.parametrize(("name", "output"), [("opt", "out_proj"), ("vit", "o_proj")])
def test_to_qkv_proj_loads_into_the_module(name, output, seed, rng):
    module, _, causal = make(name)
    layer = AttentionLayer.random(4, 12, rank=2, bias=True, seed=seed, causal=causal)
    state = convert.to_qkv_proj(layer, head_dim=3, output=output)
    module.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
    x = rng.standard_normal((2, 5, 12))
    assert relative(own_forward(module, output, x, causal), layer(x)) < 2e-7


REFUSED = {
    "gptj": (
        ("GPTJConfig", {"n_embd": 16, "n_head": 4, "rotary_dim": 4, "n_positions": 8}),
        "gptj",
        "GPTJAttention",
        "RoPE",
    ),
    "gpt2 cross": (
        ("GPT2Config", {"n_embd": 12, "n_head": 4}),
        "gpt2",
        "GPT2Attention",
        "cross-attention",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_modules_that_are_more_than_attention(name):
    config, path, cls, word = REFUSED[name]
    options = {"is_cross_attention": True} if name == "gpt2 cross" else {}
    with pytest.raises(ValueError, match=word) as error:
        convert.from_huggingface(build(name, config, path, cls, **options))
    assert "\n" not in str(error.value)


def test_a_rotary_state_with_its_configuration():
    module = build("llama", ("LlamaConfig", SMALL), "llama", "LlamaAttention")
    with pytest.raises(ValueError, match="RoPE"):
        convert.from_huggingface(module.state_dict(), num_heads=4, config=module.config)


def test_what_no_table_knows_shows_in_the_forward():
    module, _, _ = make("clip vision")

    class Shifted(type(module)):
        def forward(self, hidden_states, attention_mask=None, **options):
            return super().forward(hidden_states + hidden_states.roll(1, dims=1), attention_mask, **options)

    module.__class__ = Shifted
    with pytest.raises(ValueError, match="differs from its own Q/K/V/O"):
        convert.from_huggingface(module)


def test_scale_and_head_count_of_the_module_count():
    module, _, _ = make("bert")
    with pytest.raises(ValueError, match=r"num_heads: must be 4.* got 2"):
        convert.from_huggingface(module, num_heads=2)
    with pytest.raises(ValueError, match="differs from its own"):
        convert.from_huggingface(module, scale=1.0)


def test_a_module_without_an_output_projection():
    module, _, _ = make("bert")
    with pytest.raises(ValueError, match=r"without dense.weight"):
        convert.from_huggingface(module.self)
