"""Recording real transformers modules with random weights: the pairs are the converted layer's."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from attnlearn.convert import from_huggingface
from attnlearn.data import attention_blocks, record

from ._recording import TOLERANCE, relative_error, strong

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 39, "pad_token_id": 1}
BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
# family -> module, model, options, block, causal
FAMILIES = {
    "bert": ("bert", "Bert", {**SMALL, **TEXT}, "encoder.layer.1.attention", False),
    "vit": ("vit", "ViT", {**SMALL, "image_size": 8, "patch_size": 4}, "layers.1.attention", False),
    "albert": (
        "albert",
        "Albert",
        {**SMALL, **TEXT, "embedding_size": 8},
        "encoder.albert_layer_groups.0.albert_layers.0.attention",
        False,
    ),
    "gpt2": ("gpt2", "GPT2", {"n_embd": 16, "n_layer": 2, "n_head": 2, **TEXT}, "h.1.attn", True),
    "opt": (
        "opt",
        "OPT",
        {**SMALL, **TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16},
        "decoder.layers.1.self_attn",
        True,
    ),
    "bart-encoder": ("bart", "Bart", {**BART, **TEXT}, "encoder.layers.0.self_attn", False),
    "bart-decoder": ("bart", "Bart", {**BART, **TEXT}, "decoder.layers.0.self_attn", True),
    "clip": ("clip", "CLIPText", {**SMALL, **TEXT}, "encoder.layers.1.self_attn", True),
    "distilbert": (
        "distilbert",
        "DistilBert",
        {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "vocab_size": 40},
        "transformer.layer.0.attention",
        False,
    ),
}
LENGTHS = torch.tensor([7, 4, 2])
RIGHT = (torch.arange(7) < LENGTHS[:, None]).long()


def build(module, name, options, seed):
    configuration = importlib.import_module(f"transformers.models.{module}.configuration_{module}")
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    config = getattr(configuration, f"{name}Config")(**options)
    return strong(getattr(modeling, f"{name}Model")(config), seed)


def inputs(family, seed, mask):
    generator = torch.Generator().manual_seed(seed)
    if family == "vit":
        return {"pixel_values": torch.randn(3, 3, 8, 8, generator=generator)}
    ids = torch.randint(2, 39, (3, 7), generator=generator)
    batch = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
    if family.startswith("bart"):
        batch |= {f"decoder_{name}": value for name, value in batch.items()}
    return batch


# Images are not padded.
CASES = [(f, p) for f in FAMILIES for p in ("none", "right", "left") if f != "vit" or p == "none"]


@pytest.mark.parametrize(("family", "padding"), CASES)
def test_recorded_pairs_are_the_converted_layers(family, padding, tmp_path, seed):
    *source, name, causal = FAMILIES[family]
    model = build(*source, seed)
    kernel = model.config._attn_implementation
    mask = {"none": None, "right": RIGHT, "left": RIGHT.flip(1)}[padding]
    recorded = record(model, name, [inputs(family, seed, mask)], tmp_path / "data")
    assert recorded.causal is causal
    assert recorded.masked == (padding != "none")
    calls = 2 if family == "albert" else 1  # one block at two depths
    if mask is not None:
        assert (recorded.take(np.arange(3 * calls)).mask == np.tile(mask.bool().numpy(), (calls, 1))).all()
    assert recorded.num == 3 * calls
    layer = from_huggingface(model, prefix=name)
    assert layer.causal is causal
    assert relative_error(layer, recorded) < TOLERANCE
    # The mask and the flag matter: without them the layer is far off.
    assert relative_error(layer.replace(causal=not causal), recorded) > 0.01
    assert model.config._attn_implementation == kernel


def test_blocks_of_a_supported_model(seed):
    model = build(*FAMILIES["bart-decoder"][:3], seed)
    blocks = {block.name: block for block in attention_blocks(model)}
    assert [b.supported for b in blocks.values()] == [True, True, False]
    refused = blocks["decoder.layers.0.encoder_attn"]
    assert refused.verdict.startswith("refused: cross-attention")
    assert {(b.layout, b.num_heads, b.dim) for b in blocks.values()} == {("qkv_proj", 2, 16)}


REFUSED = {
    "rotary positions (RoPE)": (
        "gptj",
        "GPTJ",
        {"n_embd": 16, "n_head": 2, "n_layer": 1, "rotary_dim": 4, **TEXT},
    ),
    "relative positions or ALiBi": (
        "mpt",
        "Mpt",
        {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 16},
    ),
    "relative positions": ("mpnet", "MPNet", {**SMALL, **TEXT}),
}
"""Positions in modules that no family covers; tests/convert/test_positions.py has those that are read."""


@pytest.mark.parametrize("feature", REFUSED)
def test_position_terms_are_refused_by_name(feature, tmp_path, seed):
    model = build(*REFUSED[feature], seed)
    blocks = attention_blocks(model)
    assert blocks
    assert all(block.verdict.startswith("refused: ") and feature in block.verdict for block in blocks)
    with pytest.raises(
        ValueError, match=r"^module: must be plain softmax attention, got refused: "
    ) as caught:
        record(model, blocks[0].name, [], tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_steps_of_generation_are_refused(tmp_path, seed):
    model = build(*FAMILIES["gpt2"][:3], seed).eval()
    batch = inputs("gpt2", seed, None)
    with torch.no_grad():
        past = model(**batch, use_cache=True).past_key_values
    step = {"input_ids": batch["input_ids"][:, :1], "past_key_values": past}
    with pytest.raises(ValueError, match=r"^batches: must hold whole sequences, not steps of generation"):
        record(model, "h.0.attn", [step], tmp_path / "data")


def test_a_decoder_block_without_its_mask_is_refused(tmp_path, seed):
    block = build(*FAMILIES["gpt2"][:3], seed).h[0].attn
    with pytest.raises(ValueError, match=r"^module: must receive its causal mask"):
        record(block, "", [torch.randn(2, 4, 16)], tmp_path / "data")
