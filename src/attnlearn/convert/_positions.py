"""transformers' attention modules with rotary, relative or ALiBi positions, with shared keys and values, and with windows.

A module is read (`_families`), its frequencies come from its configuration, and the layer is compared with the module's own
forward, run with the position embeddings that transformers itself makes. The comparison has the last word: it also finds which
coordinates a module pairs. What a module puts around rotary scores is in `_around`; what a layer cannot hold is refused by name before.
Can fail: a T5 block other than the first has no table of its own, so it needs the model and a prefix; a window is in the
configuration alone, so a bare module of a model that sets it elsewhere is read without.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._around import kinds_around, norm_of, norms_of, scores_around
from attnlearn.convert._calibration import CHECK_SCORE, CHECK_SEQUENCES, CHECK_TOKENS, POSITION_TOLERANCE
from attnlearn.convert._check import TINY
from attnlearn.convert._families import Family, Projections, family_of
from attnlearn.convert._refusals import (
    CROSS,
    MODULE_ATTRIBUTES,
    QK_NORM,
    RELATIVE,
    ROPE,
    SINKS,
    SOFT_CAP,
    TENSOR_NAMES,
    WINDOW,
    refuse,
)
from attnlearn.convert._stated import (
    causal_of,
    dtype_of,
    head_width,
    layer_type,
    num_heads_of,
    scale_of,
    window_of,
    with_width,
)
from attnlearn.convert._torch import evaluation_copy
from attnlearn.scores import Bilinear, Offsets, Relative, Visible, alibi_slopes, frequencies_of
from attnlearn.scores._rotation import PAIRINGS

HELD = (ROPE, RELATIVE, WINDOW)
"""Features that these modules may have."""
AROUND_ROPE = (QK_NORM, SINKS, SOFT_CAP)
"""Features that modules with rotary positions may have beside."""


def positional_blocks(root: Any, prefix: str | None) -> dict[str, Any]:
    """Modules with positions that are known, by their names in `root`, at or below a prefix."""
    stem = (prefix or "").rstrip(".")
    below = (
        (name, part) for name, part in root.named_modules() if not stem or f"{name}.".startswith(f"{stem}.")
    )
    return {name: part for name, part in below if family_of(part) is not None}


def layer_of(root: Any, name: str, config: Mapping[str, Any]) -> AttentionLayer:
    """The layer of the module `name` in `root`, in the dtype of its weights; checked against its own forward."""
    return _read(root, name, config)[0]


def conventions_of(root: Any, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The pairing, YaRN's factor and the scale of the rotary module `name`, as `to_huggingface` takes them."""
    module = root.get_submodule(name)
    arrays = family_of(module).read(module, num_heads_of(module, config))  # type: ignore[union-attr]
    factor = frequencies_of(with_width(config, arrays), layer_type(module, config)).factor
    return {"pairing": _read(root, name, config)[1], "factor": factor, "scale": scale_of(module, arrays)}


def _read(root: Any, name: str, config: Mapping[str, Any]) -> tuple[AttentionLayer, str]:
    """The layer, and how the module pairs coordinates."""
    module = root.get_submodule(name)
    family = family_of(module)
    require(family is not None, "module", "must be a known attention module with positions", name)
    refuse_features(module, name)
    heads = num_heads_of(module, config)
    arrays = family.read(module, heads)  # type: ignore[union-attr]
    visible = Visible(causal_of(module, family, config), window_of(module, config))
    closest = np.inf
    for pairing, layer in _candidates(root, name, module, family, arrays, visible, config):  # type: ignore[arg-type]
        tokens = _check_tokens(layer)
        theirs = _own_forward(root, name, family, visible, config)(tokens)  # type: ignore[arg-type]
        closest = min(closest, float(np.abs(layer(tokens) - theirs).max() / max(np.abs(theirs).max(), TINY)))
        if closest <= POSITION_TOLERANCE:
            return layer.astype(dtype_of(module)), pairing
    raise ValueError(
        f"module: must compute softmax attention with known positions, got {type(module).__name__}, whose forward "
        f"differs from the layer by a relative {closest:.1e}"
    )


def refuse_features(module: Any, name: str) -> None:
    """Refuse by name what a layer with positions cannot hold either."""
    import re

    family = family_of(module)
    rotary = family is not None and family.positions == "position_embeddings"
    held = (*HELD, *AROUND_ROPE) if rotary else HELD
    for attribute, feature in MODULE_ATTRIBUTES.items():
        value = getattr(module, attribute, None)
        if feature not in held and value is not None and value is not False:
            refuse("module", feature, f"{type(module).__name__}.{attribute}")
    for tensor in module.state_dict():
        for pattern, feature in TENSOR_NAMES.items():
            if feature not in held and re.search(pattern, tensor.lower()):
                refuse("module", feature, f"tensor {tensor}")
    if re.search(r"encdecattention|cross_?att", name.lower()):
        refuse("module", CROSS, f"the name {name}")
    if rotary and (names := norms_of(module)):
        for norm in names:  # what cannot be held is refused here, before anything is recorded
            norm_of(module, norm, head_width(module))


def positions_of(module: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """The kind of a module's scores and its fixed numbers, as `describe` has them, without reading any weight."""
    family = family_of(module)
    if family is None:
        return {"kind": "bilinear"}
    if family.name == "bloom":
        return {"kind": "relative", **_offsets_json(Offsets("slope"))}
    if family.name == "t5":
        return {"kind": "relative", **_offsets_json(_bucket_offsets(module))}
    rotation = frequencies_of(config, layer_type(module, config)).rotation
    own = {"kind": "rotary", "frequencies": list(rotation.frequencies), "still": rotation.still}
    return kinds_around(module, own)


def _offsets_json(offsets: Offsets) -> dict[str, Any]:
    return {"offsets": offsets.kind, "reach": offsets.reach, "number": offsets.number, "both": offsets.both}


def _bucket_offsets(module: Any) -> Offsets:
    number, reach = module.relative_attention_num_buckets, module.relative_attention_max_distance
    return Offsets("buckets", reach=reach, number=number, both=not module.is_decoder)


def _candidates(
    root: Any,
    name: str,
    module: Any,
    family: Family,
    arrays: Projections,
    visible: Visible,
    config: Mapping[str, Any],
) -> Iterator[tuple[str, AttentionLayer]]:
    """Pairings and layers that the module may compute, the usual one first."""
    group = len(arrays.wq) // len(arrays.wk)
    wk, wv = (np.repeat(part, group, axis=0) for part in (arrays.wk, arrays.wv))
    bk, bv = (None if part is None else np.repeat(part, group, axis=0) for part in (arrays.bk, arrays.bv))
    w = wv @ arrays.wo
    values = np.zeros((len(w), w.shape[2])) if bv is None else np.einsum("ms,mso->mo", bv, arrays.wo)
    bias = values.sum(axis=0) + (0 if arrays.bo is None else arrays.bo)
    scale = scale_of(module, arrays)
    if family.positions == "position_embeddings":
        rotation, factor = frequencies_of(with_width(config, arrays), layer_type(module, config))
        by_coordinate = scale * np.where(np.arange(rotation.width) < 2 * rotation.pairs, factor, 1.0)
        for pairing in PAIRINGS:
            sides = (arrays.wq, wk, arrays.bq, bk)
            scores = scores_around(module, sides, values, rotation, by_coordinate, pairing)
            yield pairing, AttentionLayer.from_scores(scores, w, bias, causal=visible)
        return
    c = np.zeros(wk.shape[:2]) if arrays.bq is None else scale * np.einsum("mdr,mr->md", wk, arrays.bq)
    base = Bilinear.whole(scale * arrays.wq @ np.swapaxes(wk, 1, 2), c)
    if family.name == "bloom":
        table, offsets = alibi_slopes(len(w))[:, None], Offsets("slope")
    else:
        table, offsets = _buckets(root, name, module)
    yield "", AttentionLayer.from_scores(Relative(base, table, offsets), w, bias, causal=visible)


def _buckets(root: Any, name: str, module: Any) -> tuple[np.ndarray, Offsets]:
    """T5's table and how offsets choose in it."""
    owner = _owner(root, name)
    rule = "must come with the table of its positions (give the model, and prefix= for the block)"
    require(owner is not None, "module", rule, f"{type(module).__name__} without relative_attention_bias")
    table = owner.relative_attention_bias.weight.detach().cpu().double().numpy().T  # type: ignore[union-attr]
    return table, _bucket_offsets(module)


def table_owner(root: Any, name: str) -> str | None:
    """The name of the module that keeps the table of block `name`: itself, or the one in the first block of the same stack."""
    places = name.split(".")
    if "block" in places:
        places[places.index("block") + 1] = "0"
    owner = ".".join(places)
    return owner if hasattr(root.get_submodule(owner), "relative_attention_bias") else None


def _owner(root: Any, name: str) -> Any | None:
    owner = table_owner(root, name)
    return None if owner is None else root.get_submodule(owner)


def _own_forward(root: Any, name: str, family: Family, visible: Visible, config: Mapping[str, Any]):
    """Tokens -> what the module's output projection puts out, with transformers' own position embeddings."""
    import torch

    module = root.get_submodule(name)
    copied = evaluation_copy(module)
    for part in copied.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = "eager"
    captured: list[Any] = []
    getattr(copied, family.output).register_forward_hook(lambda _m, _i, output: captured.append(output))
    accepted = inspect.signature(copied.forward).parameters

    def forward(tokens: np.ndarray) -> np.ndarray:
        x, (n, k, _) = torch.from_numpy(tokens), tokens.shape
        hidden = visible.hidden(k)
        mask = torch.zeros(n, 1, k, k, dtype=torch.float64)
        if hidden is not None:
            mask[:, :, torch.from_numpy(hidden)] = torch.finfo(torch.float64).min
        options = {"mask" if "mask" in accepted else "attention_mask": mask}
        options |= _positions(root, name, module, copied, family, x, config)
        captured.clear()
        with torch.no_grad():
            copied(x, **options)
        require(len(captured) == 1, "module", "must apply its output projection once", len(captured))
        return captured[0].numpy()

    return forward


def _positions(
    root: Any, name: str, module: Any, copied: Any, family: Family, x: Any, config: Mapping[str, Any]
) -> dict[str, Any]:
    """What the forward of a family takes besides tokens and mask, made by transformers."""
    import torch

    n, k, _ = x.shape
    source = sys.modules[type(module).__module__]
    if family.positions == "position_embeddings":
        kinds = [
            kind
            for at, kind in vars(source).items()
            if at.endswith("RotaryEmbedding") and isinstance(kind, type)
        ]
        require(len(kinds) == 1, "module", "must have one kind of rotary embedding beside it", len(kinds))
        rotary, places = kinds[0](module.config), torch.arange(k)[None]
        more = (
            (layer_type(module, config),)
            if "layer_type" in inspect.signature(kinds[0].forward).parameters
            else ()
        )
        return {"position_embeddings": rotary(x, places, *more)}
    if family.name == "bloom":
        slopes = source.build_alibi_tensor(torch.ones(n, k), module.num_heads, torch.float64)
        return {"alibi": slopes, "residual": torch.zeros_like(x)}
    owner = evaluation_copy(_owner(root, name))
    bias = owner.compute_bias(k, k)
    return {"position_bias": bias}


def _check_tokens(layer: AttentionLayer) -> np.ndarray:
    """Random tokens on which the scores reach `CHECK_SCORE` and no more."""
    x = np.random.default_rng(0xC4EC).standard_normal((CHECK_SEQUENCES, CHECK_TOKENS, layer.dim))
    largest = float(np.abs(layer.scores(x)).max())
    return x * min(1.0, np.sqrt(CHECK_SCORE / max(largest, TINY)))
