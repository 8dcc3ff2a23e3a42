"""Small random transformers models with positions: one row a family, with the name of the block that is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SHARED = {**SIZES, "num_key_value_heads": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
LLAMA3 = {
    "rope_theta": 5e5,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


class Row(NamedTuple):
    """A model's class and configuration, the block, its family, window and number of key heads."""

    kind: str
    config: dict[str, Any]
    block: str
    family: str | None = "qkv_proj"
    window: int | None = None
    key_heads: int = 2
    pairing: str = "half-split"
    writing: tuple[tuple[str, float], ...] = ()
    """What `to_huggingface` has to be told of the model's conventions."""


GEMMA = {**SHARED, "head_dim": 8, "sliding_window": 3, "query_pre_attn_scalar": 16}
ROWS = {
    "llama": Row("Llama", SHARED, "layers.1.self_attn"),
    "llama, biases, llama3 scaling": Row(
        "Llama", {**SHARED, "attention_bias": True, "rope_parameters": LLAMA3}, "layers.1.self_attn"
    ),
    "llama, yarn": Row(
        "Llama", {**SHARED, "rope_parameters": YARN, "max_position_embeddings": 256}, "layers.1.self_attn"
    ),
    "mistral": Row("Mistral", {**SHARED, "sliding_window": 3}, "layers.1.self_attn", window=3),
    "qwen2": Row("Qwen2", SHARED, "layers.1.self_attn"),
    "qwen2, window": Row(
        "Qwen2",
        {**SHARED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
        "layers.1.self_attn",
        window=3,
    ),
    "gemma": Row("Gemma", {**SHARED, "head_dim": 8}, "layers.1.self_attn"),
    "cohere": Row("Cohere", SHARED, "layers.1.self_attn", pairing="interleaved"),
    "cohere, qk-norm": Row(
        "Cohere", {**SHARED, "use_qk_norm": True}, "layers.1.self_attn", None, pairing="interleaved"
    ),
    "qwen3": Row("Qwen3", {**SHARED, "head_dim": 8}, "layers.1.self_attn"),
    "gemma2": Row("Gemma2", GEMMA, "layers.0.self_attn", window=3, writing=(("scale", 0.25),)),
    "gemma3": Row(
        "Gemma3Text", GEMMA, "layers.1.self_attn", window=3, writing=(("scale", 0.25), ("norm_offset", 1.0))
    ),
    "gpt-oss": Row(
        "GptOss",
        {**SHARED, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
        "layers.1.self_attn",
    ),
    "glm": Row("Glm", {**SHARED, "head_dim": 8}, "layers.1.self_attn", pairing="interleaved"),
    "phi": Row("Phi", SIZES, "layers.1.self_attn", "phi", key_heads=4),
    "gpt-neox": Row("GPTNeoX", SIZES, "layers.1.attention", "gpt_neox", key_heads=4),
    "modernbert": Row(
        "ModernBert",
        {
            **SIZES,
            "local_attention": 4,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 3,
            "sep_token_id": 4,
        },
        "layers.1.attn",
        "modernbert",
        window=3,
        key_heads=4,
    ),
    "t5": Row("T5", T5, "encoder.block.1.layer.0.SelfAttention", "t5", key_heads=4),
    "t5 decoder": Row("T5", T5, "decoder.block.1.layer.0.SelfAttention", "t5", key_heads=4),
    "bloom": Row(
        "Bloom",
        {"hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": 50, "initializer_range": 0.2},
        "h.1.self_attention",
        "bloom",
        key_heads=4,
    ),
}
REFUSED = {
    "olmo2": (Row("Olmo2", SHARED, "layers.1.self_attn"), "QK-norm .* over"),
    "glm4-moe": (
        Row(
            "Glm4Moe",
            {
                **SHARED,
                "use_qk_norm": True,
                "head_dim": 8,
                "n_routed_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 8,
                "first_k_dense_replace": 2,
            },
            "layers.1.self_attn",
        ),
        "QK-norm .*turns a part",
    ),
    "t5, cross": (Row("T5", T5, "decoder.block.1.layer.1.EncDecAttention"), "cross-attention"),
}


SINGLE = ("Bloom", "GptOss")
"""Models that compute in float32 alone."""


def build(row: Row, seed: int = 0) -> Any:
    """The model of a row with random weights, in float64 where it allows."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config: Callable[..., Any] = getattr(transformers, f"{row.kind}Config")
    model = getattr(transformers, f"{row.kind}Model")(config(**row.config)).eval()
    for part in model.modules():  # LayerNorms and biases away from their starts
        if getattr(part, "bias", None) is not None and part.bias.ndim == 1:
            torch.nn.init.normal_(part.bias, std=0.2)
    for name, parameter in model.named_parameters():  # of queries and keys, and sinks
        if name.endswith(("q_norm.weight", "k_norm.weight", "sinks")):
            torch.nn.init.normal_(parameter, mean=0.7, std=0.2)
    return model if row.kind in SINGLE else model.double()


def batch(row: Row, seed: int = 0, k: int = 9) -> dict[str, Any]:
    """Six sequences, one of them padded by one token."""
    import torch

    torch.manual_seed(seed)
    ids, mask = torch.randint(1, 50, (6, k)), torch.ones(6, k, dtype=torch.long)
    mask[2, -1] = 0
    found = {"input_ids": ids, "attention_mask": mask}
    return found | ({"decoder_input_ids": ids, "decoder_attention_mask": mask} if row.kind == "T5" else {})
