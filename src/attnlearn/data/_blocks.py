"""Which modules of a torch model are attention blocks, and which of them a layer can represent.

Blocks are found by the names of their tensors (the converters' table of layouts); modules that call themselves
attention but store something else are listed as refused. A verdict names the feature that a layer cannot hold,
e.g. rotary positions. Nothing is run here: what a mask does shows only while recording.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RECORDABLE = ("torch", "bert", "vit", "albert", "gpt2", "qkv_proj", "distilbert")


@dataclass(frozen=True)
class Block:
    """A candidate: its name in the model, how it stores its weights, and whether it can be recorded.

    >>> Block("h.0.attn", "gpt2", 12, 768, True, "supported").supported
    True
    """

    name: str
    layout: str
    num_heads: int | None
    dim: int | None
    supported: bool
    verdict: str


@dataclass(frozen=True)
class Site:
    """Where to listen: the module that receives tokens and mask, and the one whose output is y."""

    block: Block
    source: Any
    target: Any
    window: int | None = None
    positions: dict[str, Any] | None = None
    """What the scores depend on besides the tokens (`attnlearn.scores.describe`); None for plain attention."""


def attention_blocks(model: torch.nn.Module) -> list[Block]:
    """The attention blocks of a torch model with heads, layout and verdict, in the model's order.

    >>> import torch
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> attention_blocks(model)
    [Block(name='self_attn', layout='torch', num_heads=2, dim=8, supported=True, verdict='supported')]
    """
    return [site.block for site in find_sites(model)]


def find_sites(model: torch.nn.Module) -> list[Site]:
    """Every candidate block with the modules to listen to."""
    import torch

    from attnlearn.convert._layouts import find_blocks
    from attnlearn.convert._positions import positional_blocks

    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model: must be a torch.nn.Module, got {type(model).__name__}")
    modules = dict(model.named_modules())
    names = list(model.state_dict())
    sites = {
        name: _torch_site(name, module)
        for name, module in modules.items()
        if isinstance(module, torch.nn.MultiheadAttention)
    }
    sites |= {
        name: _positional_site(name, part, model) for name, part in positional_blocks(model, None).items()
    }
    for found in find_blocks(names)[0]:
        name = found.prefix.rstrip(".")
        if found.layout.name != "torch" and name not in sites and name in modules:
            sites[name] = _known_site(name, found, modules, names, model)
    for name, module in modules.items():
        if _unknown_attention(name, module, sites):
            verdict = _verdict(lambda module=module: _refuse_unknown(module, model))
            sites[name] = Site(Block(name, "unknown", None, None, False, verdict), module, module)
    order = {name: number for number, name in enumerate(modules)}
    return sorted(sites.values(), key=lambda site: order[site.block.name])


def _torch_site(name: str, module: torch.nn.MultiheadAttention) -> Site:
    verdict = _verdict(lambda: _refuse_torch(name, module))
    block = Block(name, "torch", module.num_heads, module.embed_dim, verdict == "supported", verdict)
    return Site(block, module, module)


def _positional_site(name: str, module: Any, model: Any) -> Site:
    """A module whose scores depend on positions; what cannot be held is refused by name."""
    from attnlearn.convert._families import family_of
    from attnlearn.convert._positions import positions_of, refuse_features
    from attnlearn.convert._stated import window_of

    family, config = family_of(module), _config(module, model)
    described: dict[str, Any] = {}

    def check() -> None:
        refuse_features(module, name)
        described.update(positions_of(module, config))

    verdict = _verdict(check)
    first, output = (getattr(module, part) for part in (family.parts[0], family.output))  # type: ignore[union-attr]
    block = Block(
        name,
        family.name,  # type: ignore[union-attr]
        _num_heads(module, model),
        int(first.weight.shape[1]),
        verdict == "supported",
        verdict,
    )
    return Site(block, module, output, window_of(module, config), described or None)


def _known_site(name: str, found: Any, modules: dict[str, Any], names: list[str], model: Any) -> Site:
    from attnlearn.convert._layouts import CORES, choose_block
    from attnlearn.convert._refusals import refuse_config, refuse_module

    outer = modules[name]
    core = getattr(outer, CORES.get(found.layout.name, ""), outer)
    layout = found.layout.name

    def refuse() -> None:
        if layout not in RECORDABLE:
            raise ValueError(f"module: must be in a layout that can be hooked, got {layout}")
        refuse_module(outer)
        refuse_module(core)
        refuse_config("module", _config(outer, core, model))
        choose_block([n for n in names if n.startswith(found.prefix)], found.prefix, "module")

    verdict = _verdict(refuse)
    projection = found.names["output.weight"].removesuffix(".weight")
    dim = getattr(
        modules.get(found.names.get("query.weight", "").removesuffix(".weight")), "in_features", None
    )
    if dim is None and layout == "gpt2":
        dim = modules[found.names["in.weight"].removesuffix(".weight")].weight.shape[0]
    block = Block(name, layout, _num_heads(outer, core, model), dim, verdict == "supported", verdict)
    return Site(block, core, modules.get(projection, outer))


def _unknown_attention(name: str, module: Any, sites: dict[str, Site]) -> bool:
    """A module that calls itself attention, has weights, and is neither around nor inside a listed one."""
    if "attention" not in type(module).__name__.lower() or not any(True for _ in module.parameters()):
        return False
    if any(name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.") for other in sites):
        return False
    inner = (type(part).__name__.lower() for part in module.modules() if part is not module)
    return not any("attention" in part for part in inner)


def _refuse_torch(name: str, module: torch.nn.MultiheadAttention) -> None:
    from attnlearn.convert._refusals import BIAS_KV, CROSS, CROSS_BLOCKS, DIFFERENT_KEYS, ZERO_ATTN, refuse

    if module.bias_k is not None or module.bias_v is not None:
        refuse("module", BIAS_KV, "bias_k and bias_v are set")
    if module.add_zero_attn:
        refuse("module", ZERO_ATTN, "add_zero_attn=True")
    if module.in_proj_weight is None:
        refuse("module", DIFFERENT_KEYS, f"kdim={module.kdim}, vdim={module.vdim}")
    if re.search(CROSS_BLOCKS, f"{name}."):
        refuse("module", CROSS, f"the name {name}")


def _refuse_unknown(module: Any, model: Any) -> None:
    from attnlearn.convert._refusals import refuse_config, refuse_module, refuse_names

    refuse_module(module)
    refuse_names("module", list(module.state_dict()), [])
    refuse_config("module", _config(module, model))
    names = ", ".join(list(module.state_dict())[:4])
    raise ValueError(f"module: must be in a known layout, got {type(module).__name__} with {names}")


def _verdict(check: Any) -> str:
    try:
        check()
    except ValueError as error:
        return f"refused: {str(error).split(', got ', 1)[-1]}"
    return "supported"


def _config(*modules: Any) -> dict[str, Any]:
    config = next((m.config for m in modules if hasattr(getattr(m, "config", None), "to_dict")), None)
    return {} if config is None else config.to_dict()


def _num_heads(*modules: Any) -> int | None:
    names = ("num_heads", "num_attention_heads", "n_heads", "n_head")
    for module in (*modules, *(getattr(m, "config", None) for m in modules)):
        for name in names:
            if isinstance(getattr(module, name, None), int):
                return getattr(module, name)
    return None
