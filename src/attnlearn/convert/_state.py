"""From a state (names and tensors, from a file or a module) to a layer: choose, check, assemble.

The head count comes from the caller, the file's metadata or the model's configuration, and they have to agree;
it is never guessed from shapes. Layouts whose arrays have a head axis state it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._arrays import assemble_wide
from attnlearn.convert._gpt2 import assemble_gpt2
from attnlearn.convert._layouts import Found
from attnlearn.convert._projections import PARTS, assemble_linear
from attnlearn.convert._qkvo import from_qkvo
from attnlearn.convert._refusals import refuse_config
from attnlearn.convert._torch import assemble_torch

Reader = Callable[[Sequence[str]], Mapping[str, np.ndarray]]

_HEAD_KEYS = ("num_heads", "num_attention_heads", "n_head", "n_heads")
_CAUSAL_MODELS = ("gpt2", "opt", "gpt_neo", "openai-gpt", "xglm", "biogpt", "clip_text_model")


def layer_from_state(
    found: Found,
    read: Reader,
    *,
    num_heads: int | None,
    scale: float | None,
    causal: bool | None,
    config: Mapping[str, Any],
    parameter: str,
    check: Callable[[AttentionLayer], None] | None = None,
) -> AttentionLayer:
    """The layer of one block; `read` returns tensors by full name, `check` sees the layer before rounding."""
    refuse_config(parameter, config)
    tensors = read(list(found.names.values()))
    roles = {role: tensors[name] for role, name in found.names.items()}
    scale = _number(config, "scale") if scale is None else scale
    causal = _causal(found, config, parameter) if causal is None else causal
    heads = _num_heads(num_heads, config)
    if found.layout.name in ("qkvo", "transformer_lens"):
        arrays = [roles.get(f"{part}.{kind}") for kind in ("weight", "bias") for part in PARTS]
        _require_dimensions(arrays[:4], found)
        return from_qkvo(*arrays, scale=scale, num_heads=heads, causal=causal)
    rule = f"must be given: {parameter} does not say it, and it is never guessed"
    require(heads is not None, "num_heads", rule, None)
    _require_head_dim(roles, int(heads or 0), config)
    assemble = {"gpt2": assemble_gpt2, "torch": assemble_torch}.get(found.layout.name, assemble_linear)
    return assemble_wide(assemble, roles, heads, scale, causal, check=check)


def _num_heads(given: int | None, config: Mapping[str, Any]) -> int | None:
    stated = next((config[key] for key in _HEAD_KEYS if config.get(key) is not None), None)
    if stated is None:
        return given
    try:
        count = int(stated)
    except (TypeError, ValueError):
        count = 0
    require(count >= 1, "num_heads", "must be a positive integer in the metadata or configuration", stated)
    require(
        given is None or given == count,
        "num_heads",
        f"must be {count}, as the metadata or configuration say",
        given,
    )
    return count


def _causal(found: Found, config: Mapping[str, Any], parameter: str) -> bool:
    stated = config.get("causal", config.get("is_causal"))
    if stated is not None:
        return stated is True or str(stated).lower() == "true"
    if found.layout.name == "transformer_lens":
        raise ValueError(f"causal: must be given, {parameter} does not say it (cfg.attention_dir), got None")
    decoder = config.get("is_decoder") is True or str(config.get("model_type")) in _CAUSAL_MODELS
    return decoder or found.layout.name == "gpt2"


def _number(config: Mapping[str, Any], key: str) -> float | None:
    if config.get(key) is None:
        return None
    try:
        value = float(config[key])
    except (TypeError, ValueError):
        value = float("nan")
    require(bool(np.isfinite(value)), key, "must be a finite number in the metadata", config[key])
    return value


def _require_dimensions(weights: Sequence[Any], found: Found) -> None:
    for part, array in zip(PARTS, weights, strict=True):
        name = found.names[f"{part}.weight"]
        require(array.ndim == 3, name, "must have three axes (head, in, out)", array)


def _require_head_dim(roles: Mapping[str, np.ndarray], heads: int, config: Mapping[str, Any]) -> None:
    """A configured head_dim pins the head count even where shapes would allow another."""
    head_dim, query = config.get("head_dim"), roles.get("query.weight")
    if isinstance(head_dim, int) and query is not None:
        rule = f"must have {heads} heads of {head_dim} rows, as the configuration says"
        require(query.shape[0] == heads * head_dim, "query.weight", rule, query)
