"""What a layer cannot represent, and how a source gives it away: by tensor names, configuration or module.

Every refusal is one line that names the feature and the evidence. Tables only; a feature that none of them
knows still fails the comparison with the module's own forward, or stands out as an unknown tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from attnlearn._errors import one_line

ROPE = "rotary positions (RoPE)"
ALIBI = "ALiBi position slopes"
RELATIVE = "relative positions"
POSITION_BIAS = "relative positions or ALiBi (a position bias)"
QK_NORM = "QK-norm (normalised queries and keys)"
SINKS = "attention sinks"
SOFT_CAP = "soft-capped scores"
BIAS_KV = "add_bias_kv (a learned extra key and value)"
ZERO_ATTN = "add_zero_attn (an extra zero key)"
CROSS = "cross-attention (keys from another sequence)"
WINDOW = "sliding-window attention"
COSINE = "a learned scale per score (cosine attention)"
GATE = "gated attention outputs"
DIFFERENT_KEYS = "keys or values of another dimension (kdim, vdim)"

TENSOR_NAMES = {
    r"rotary|(^|[._])rope([._]|$)|inv_freq": ROPE,
    r"alibi|(^|\.)slopes$": ALIBI,
    r"relative_attention_bias|relative_position|relative_k|relative_v|rel_pos|rel_embed|rel_attn|rel_shift": RELATIVE,
    r"distance_embedding|pos_bias_[uv]|linear_pos|r_[rw]_bias|pos_(key|query|q|k)_proj|(^|\.)r_net": RELATIVE,
    r"(^|\.)(q|k|qk|query|key)_?(norm|layer_?norm|ln)(\.|$)": QK_NORM,
    r"(^|[._])sinks?(\.|$)": SINKS,
    r"(^|\.)bias_[kv]$": BIAS_KV,
    r"(^|\.)[qkv]_proj_weight$": DIFFERENT_KEYS,
    r"(^|\.)q_attn\.": CROSS,
    r"logit_scale$": COSINE,
    r"(^|\.)(g_proj|gate|gate_proj|gru_rel_pos\w*)(\.|$)": GATE,
}
"""Tensors inside an attention block."""

ANYWHERE = (ROPE, ALIBI, RELATIVE)
"""Features whose tensor may live outside the block that uses them (T5 keeps one table for all layers)."""

CROSS_BLOCKS = (
    r"(^|\.)(encoder_attn|crossattention|cross_attn|cross_attention|encdecattention|multihead_attn)\."
)
"""Blocks that read keys from another sequence (torch's decoder layer calls its one multihead_attn)."""

CONFIG_KEYS = {
    "rope_theta": ROPE,
    "rope_parameters": ROPE,
    "rope_scaling": ROPE,
    "rotary_dim": ROPE,
    "rotary_pct": ROPE,
    "rotary_emb_base": ROPE,
    "partial_rotary_factor": ROPE,
    "alibi": ALIBI,
    "use_alibi": ALIBI,
    "relative_attention_num_buckets": RELATIVE,
    "relative_attention": RELATIVE,
    "use_relative_position_bias": RELATIVE,
    "use_shared_relative_position_bias": RELATIVE,
    "attn_logit_softcapping": SOFT_CAP,
    "use_qk_norm": QK_NORM,
    "qk_norm": QK_NORM,
    "qk_layernorm": QK_NORM,
    "qk_layernorms": QK_NORM,
}
"""Configuration entries that name a feature when set to anything but None, False or an empty value."""

POSITION_TYPES = {
    "rotary": ROPE,
    "rope": ROPE,
    "alibi": ALIBI,
    "relative_key": RELATIVE,
    "relative_key_query": RELATIVE,
    "relative": RELATIVE,
}
"""Values of `position_embedding_type`; "absolute" positions are added to the tokens and do not concern us."""

_ROPE_MODELS = """llama llama4 mistral mixtral ministral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3 phi phi3
    phimoe gpt_neox gptj codegen falcon olmo olmo2 olmo3 olmoe stablelm cohere cohere2 starcoder2 granite granitemoe
    glm glm4 deepseek_v2 deepseek_v3 persimmon helium nemotron smollm3 modernbert nomic_bert roformer dbrx jamba
    gpt_oss"""
_RELATIVE_MODELS = (
    "t5 mt5 umt5 longt5 switch_transformers deberta deberta-v2 mpnet transfo-xl xlnet swin beit"
)
MODEL_TYPES = {
    **dict.fromkeys(_ROPE_MODELS.split(), ROPE),
    **dict.fromkeys(_RELATIVE_MODELS.split(), RELATIVE),
    **dict.fromkeys(("bloom", "mpt"), ALIBI),
}
"""`model_type` in metadata or configuration, for files whose tensor names cannot reveal positions."""

FORWARD_PARAMETERS = {
    "position_embeddings": ROPE,
    "rotary_pos_emb": ROPE,
    "rotary_emb": ROPE,
    "freqs_cis": ROPE,
    "alibi": ALIBI,
    "position_bias": POSITION_BIAS,
    "relative_pos": RELATIVE,
    "rel_pos": RELATIVE,
    "relative_position_bias": RELATIVE,
}
"""Parameters of a module's forward."""

MODULE_ATTRIBUTES = {
    "rotary_emb": ROPE,
    "embed_positions": ROPE,
    "alibi": ALIBI,
    "has_relative_attention_bias": RELATIVE,
    "attn_logit_softcapping": SOFT_CAP,
    "q_norm": QK_NORM,
    "k_norm": QK_NORM,
    "sinks": SINKS,
    "sliding_window": WINDOW,
    "is_cross_attention": CROSS,
}
"""Attributes of an attention module that name a feature when they are neither None nor False."""


def refuse(parameter: str, feature: str, evidence: str) -> NoReturn:
    """The one line of every refusal."""
    raise ValueError(f"{parameter}: must be plain softmax attention, got {feature}: {one_line(evidence)}")


def refuse_names(parameter: str, block: Iterable[str], others: Iterable[str]) -> None:
    """Refuse by the names of the tensors in the attention block, and elsewhere in the same state."""
    for name in block:
        if re.search(CROSS_BLOCKS, name.lower()):
            refuse(parameter, CROSS, f"tensor {name}")
    for names, features in ((block, set(TENSOR_NAMES.values())), (others, set(ANYWHERE))):
        for name in names:
            for pattern, feature in TENSOR_NAMES.items():
                if feature in features and re.search(pattern, name.lower()):
                    refuse(parameter, feature, f"tensor {name}")


def refuse_config(parameter: str, config: Mapping[str, Any]) -> None:
    """Refuse by a model's configuration (or a file's metadata, which may carry the same entries).

    Absolute positions overrule rotary settings, which ESM's configuration carries in both cases.
    """
    absolute = config.get("position_embedding_type") == "absolute"
    for key, feature in CONFIG_KEYS.items():
        if _set(config.get(key)) and not (absolute and feature == ROPE):
            refuse(parameter, feature, f"configuration {key} = {_short(config[key])}")
    kind = str(config.get("position_embedding_type"))
    if kind in POSITION_TYPES:
        refuse(parameter, POSITION_TYPES[kind], f"configuration position_embedding_type = {kind}")
    model = str(config.get("model_type"))
    if model in MODEL_TYPES:
        refuse(parameter, MODEL_TYPES[model], f"configuration model_type = {model}")


def refuse_module(module: Any, config: Mapping[str, Any] | None = None) -> None:
    """Refuse by a module's attributes and the parameters of its forward.

    A forward that could take rotary positions is let through when the configuration says that positions are
    absolute (ESM knows both); the comparison with that forward has the last word.
    """
    import inspect

    for name, feature in MODULE_ATTRIBUTES.items():
        value = getattr(module, name, None)
        if value is not None and value is not False:
            refuse("module", feature, f"{type(module).__name__}.{name}")
    accepted = inspect.signature(module.forward).parameters
    absolute = (config or {}).get("position_embedding_type") == "absolute"
    for name, feature in FORWARD_PARAMETERS.items():
        if name in accepted and not (absolute and feature == ROPE):
            refuse("module", feature, f"{type(module).__name__}.forward takes {name}")


def _set(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", "false", "False", "null", {}, [])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
