"""What transformers' attention modules and their configurations say of themselves: heads, width, scale, mask, kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlearn.convert._families import Projections


def layer_type(module: Any, config: Mapping[str, Any]) -> str | None:
    """Which of a model's kinds of layers a module is in, where the configuration lists them."""
    kinds, place = config.get("layer_types"), getattr(module, "layer_idx", None)
    return kinds[place] if isinstance(kinds, list) and isinstance(place, int) and place < len(kinds) else None


def window_of(module: Any, config: Mapping[str, Any]) -> int | None:
    """A module's own window if it says one; otherwise that of the configuration, where that holds for every layer."""
    if hasattr(module, "sliding_window"):
        return module.sliding_window
    return None if config.get("layer_types") else config.get("sliding_window")


def with_width(config: Mapping[str, Any], arrays: Projections) -> dict[str, Any]:
    """The configuration with the width that the weights have."""
    return {**config, "head_dim": arrays.wq.shape[2]}


def head_width(module: Any) -> int:
    """The width of a module's heads."""
    stated = getattr(module, "head_dim", None)
    return stated if isinstance(stated, int) else module.q_proj.weight.shape[0] // num_heads_of(module, {})


def num_heads_of(module: Any, config: Mapping[str, Any]) -> int:
    """The number of heads that a module or its configuration says."""
    for source in (module, config):
        for name in ("num_attention_heads", "num_heads", "n_heads", "n_head"):
            value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
            if isinstance(value, int):
                return value
    raise ValueError(f"module: must say its number of heads, got {type(module).__name__}")


def causal_of(module: Any, family: Any, config: Mapping[str, Any]) -> bool:
    """Whether a module is causal."""
    stated = getattr(module, "is_causal", None)
    if isinstance(stated, bool):
        return stated
    return family.name == "bloom" or bool(config.get("is_decoder"))


def scale_of(module: Any, arrays: Projections) -> float:
    """The factor on the scores."""
    for name in ("scaling", "inv_norm_factor"):
        value = getattr(module, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return float(arrays.wq.shape[2] ** -0.5)


def dtype_of(module: Any) -> Any:
    """The precision of a layer of this module."""
    import torch

    return np.float64 if next(module.parameters()).dtype == torch.float64 else np.float32
