"""Hugging Face modules and state dicts: BERT, ALBERT, ViT, GPT-2 and the q_proj families; with positions in `_positions`.

A module is read by the names in its state, refused by name for what a layer cannot hold, and its own forward
is run on a few tokens: what no table knows about still shows there. A bare state dict can only be judged by its
names and the configuration given with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlearn._errors import one_line, require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._arrays import to_floats
from attnlearn.convert._layouts import CORES, Found, choose_block
from attnlearn.convert._positions import layer_of, positional_blocks
from attnlearn.convert._refusals import refuse_config, refuse_module
from attnlearn.convert._state import layer_from_state
from attnlearn.convert._torch import evaluation_copy, from_torch, require_same_forward


def from_huggingface(
    module_or_state: Any,
    *,
    num_heads: int | None = None,
    prefix: str | None = None,
    scale: float | None = None,
    causal: bool | None = None,
    config: Any = None,
) -> AttentionLayer:
    """The layer of an attention module (or a model and a `prefix`), or of a state dict.

    A module says its head count, scale and causality itself; for a state dict give `num_heads` or `config`
    (a mapping or a transformers configuration). `scale` defaults to 1 / sqrt(head_dim). State dicts are read
    as bidirectional except GPT-2's: pass `causal=True` for other decoders.

    >>> from attnlearn.convert import to_bert
    >>> state = to_bert(AttentionLayer.random(2, 6, rank=3))
    >>> from_huggingface(state, num_heads=2)
    AttentionLayer(num_heads=2, dim=6, out_dim=6, causal=False, dtype=float64)
    """
    settings = _as_mapping(config)
    if isinstance(module_or_state, Mapping):
        state = module_or_state
        found = choose_block([str(name) for name in state], prefix, "state")
        read = lambda names: {name: to_floats(state[name], name) for name in names}  # noqa: E731
        return layer_from_state(
            found, read, num_heads=num_heads, scale=scale, causal=causal, config=settings, parameter="state"
        )
    require(
        hasattr(module_or_state, "state_dict") and hasattr(module_or_state, "get_submodule"),
        "module_or_state",
        "must be a torch module or a mapping of names to tensors",
        type(module_or_state).__name__,
    )
    return _from_module(module_or_state, num_heads, prefix, scale, causal, settings)


def _from_module(module, num_heads, prefix, scale, causal, settings) -> AttentionLayer:
    positional = positional_blocks(module, prefix)
    if positional:
        return _with_positions(module, positional, prefix, settings)
    _refuse_early(module, prefix)
    state = module.state_dict()
    found = choose_block(list(state), prefix, "module")
    block = module.get_submodule(found.prefix.rstrip("."))
    if found.layout.name == "torch":
        return from_torch(block, causal=bool(causal))
    core = getattr(block, CORES.get(found.layout.name, ""), block)
    config = {**_as_mapping(_first(block, core, module, name="config")), **settings}
    for part in (block, core):
        refuse_module(part, config)
    refuse_config("module", config)
    config |= _stated(core, block)
    scale = _scale(core, found) if scale is None else scale
    return layer_from_state(
        found,
        lambda names: {name: to_floats(state[name], name) for name in names},
        num_heads=num_heads,
        scale=scale,
        causal=causal,
        config=config,
        parameter="module",
        check=lambda layer: require_same_forward(layer, _own_forward(block, found, layer.causal)),
    )


def _with_positions(module: Any, blocks: Mapping[str, Any], prefix: str | None, settings: dict[str, Any]):
    name = block_with_positions(blocks, prefix)
    block = blocks[name]
    return layer_of(module, name, {**_as_mapping(_first(block, module, name="config")), **settings})


def block_with_positions(blocks: Mapping[str, Any], prefix: str | None) -> str:
    """The one block with positions at or below the prefix; a module that is the block itself has the name ''."""
    names = [name for name in blocks if name == (prefix or "").rstrip(".")] or list(blocks)
    if len(names) > 1:
        shown = one_line(", ".join(names[:12]), 1000)
        raise ValueError(f"prefix: must name one attention block ({shown}), got {prefix!r}")
    return names[0]


def _refuse_early(module: Any, prefix: str | None) -> None:
    """Name the feature before complaining that a fused or unknown layout is not in the table."""
    if prefix is None and hasattr(module, "forward"):
        parts = (getattr(module, name, None) for name in CORES.values())
        config = _as_mapping(_first(module, *parts, name="config"))
        refuse_module(module, config)
        refuse_config("module", config)


def _stated(core: Any, block: Any) -> dict[str, Any]:
    """Head count and causality as the module's attributes say them."""
    count = _first(core, block, name="num_heads") or _first(core, block, name="num_attention_heads")
    stated = {} if count is None else {"num_heads": int(count)}
    if getattr(core, "is_causal", False) is True:
        stated["is_causal"] = True
    return stated


def _scale(core: Any, found: Found) -> float | None:
    """The factor on the scores: 1 / sqrt(head_dim) in BERT's families (ESM's attribute is 1, after scaling its
    queries), the module's own attribute in the others. The comparison with its forward has the last word.
    """
    if found.layout.name in ("bert", "albert", "vit", "distilbert"):
        return None
    for name in ("scaling", "scale"):
        value = getattr(core, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    raise ValueError(
        f"scale: must be given, {type(core).__name__} has no attribute scaling or scale, got None"
    )


def _own_forward(block: Any, found: Found, causal: bool):
    """Tokens -> what the module's output projection puts out, before dropout, residual and LayerNorm."""
    import torch

    copied = evaluation_copy(block)
    for part in copied.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = "eager"  # a fused kernel may not run here
    projection = copied.get_submodule(found.names["output.weight"][len(found.prefix) : -len(".weight")])
    captured: list[Any] = []
    projection.register_forward_hook(lambda _module, _inputs, output: captured.append(output))
    core = getattr(copied, CORES.get(found.layout.name, ""), copied)
    accepted = inspect.signature(core.forward).parameters

    def forward(tokens: np.ndarray) -> np.ndarray:
        n, k, _ = tokens.shape
        mask = torch.zeros(n, 1, k, k, dtype=torch.float64)
        if causal:
            mask += torch.triu(torch.full((k, k), torch.finfo(mask.dtype).min, dtype=mask.dtype), 1)
        options = {"attention_mask": mask} if "attention_mask" in accepted else {}
        captured.clear()
        try:
            with torch.no_grad():
                mixed = core(torch.from_numpy(tokens), **options)
                if core is not copied:  # the block around it may normalise the tokens first
                    projection(mixed[0] if isinstance(mixed, tuple) else mixed)
        except Exception as error:  # whatever it needs besides tokens and a mask is not plain attention
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"module: must run on tokens and a mask alone, got {type(block).__name__}: {first}"
            ) from error
        require(len(captured) == 1, "module", "must apply its output projection once", len(captured))
        return captured[0].reshape(n, k, -1).numpy()

    return forward


def _first(*objects: Any, name: str) -> Any:
    return next((value for value in (getattr(o, name, None) for o in objects) if value is not None), None)


def _as_mapping(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    require(
        hasattr(config, "to_dict"), "config", "must be a mapping or have to_dict()", type(config).__name__
    )
    return {key: value for key, value in config.to_dict().items() if key not in ("num_heads", "is_causal")}
