"""Files: `load` recognises every layout by its tensor names, `save_layout` writes one that its source can read.

Only names are read until one block is chosen, then only that block's tensors. Metadata that `save_layout`
writes: `format`, `num_heads`, `scale`, `causal`. Folders of saved models and the `config.json` beside a file are
in `_folder`. Pickles go through torch's `weights_only=True` or are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._files import read_tensors, write_tensors
from attnlearn._layer import AttentionLayer
from attnlearn._precision import FLOATS
from attnlearn._storage import is_layer_file, layer_from_tensors
from attnlearn._version import __version__
from attnlearn.convert._arrays import to_floats
from attnlearn.convert._bert import to_bert
from attnlearn.convert._folder import layer_with_positions, open_source, refuse_bare
from attnlearn.convert._gpt2 import to_gpt2
from attnlearn.convert._layouts import choose_block
from attnlearn.convert._projections import to_qkv_proj
from attnlearn.convert._qkvo import to_qkvo
from attnlearn.convert._state import layer_from_state
from attnlearn.convert._torch import to_torch_state
from attnlearn.convert._transformer_lens import to_transformer_lens


def load(
    path: str | os.PathLike[str],
    *,
    num_heads: int | None = None,
    prefix: str | None = None,
    causal: bool | None = None,
    dtype: Any = None,
) -> AttentionLayer:
    """Read one attention layer from a file in attnlearn's own format or any layout of the table, or from a saved model's folder.

    `prefix` chooses among several blocks ("encoder.layer.3"); without it they are listed. `num_heads` is
    needed where neither metadata nor a configuration say it. `causal` defaults to what the file says, then to
    True for GPT-2 and False otherwise. A folder holds config.json and the tensors, in one file or in several with an index; models with
    positions are read through transformers, and the layer is compared with their own forward. `dtype` converts the stored weights before they are multiplied:
    float64 gives the exact layer of float32 weights.

    >>> import tempfile; path = tempfile.mkdtemp() + "/layer.safetensors"
    >>> layer = AttentionLayer.random(2, 6, rank=3); save_layout(layer, path, layout="bert")
    >>> load(path)
    AttentionLayer(num_heads=2, dim=6, out_dim=6, causal=False, dtype=float64)
    """
    wanted = None if dtype is None else np.dtype(dtype)
    require(wanted is None or wanted in FLOATS, "dtype", "must be float32 or float64", str(wanted))
    source = open_source(path)
    if is_layer_file(source.metadata):
        return _own(source.path, num_heads, prefix, causal, wanted)

    def floats(chosen):
        arrays = {name: to_floats(value, name) for name, value in source.read(chosen).items()}
        return arrays if wanted is None else {name: array.astype(wanted) for name, array in arrays.items()}

    if source.positional:
        return _as_said(layer_with_positions(source, prefix, floats), num_heads, causal)
    found = choose_block(source.names, prefix, "path")
    refuse_bare(source, found)
    return layer_from_state(
        found,
        floats,
        num_heads=num_heads,
        scale=None,
        causal=causal,
        config={**source.config, **source.metadata},
        parameter="path",
    )


def save_layout(
    layer: AttentionLayer,
    path: str | os.PathLike[str],
    *,
    layout: str,
    prefix: str | None = None,
    tolerance: float | None = None,
    kv_heads: int | None = None,
) -> None:
    """Write the layer as safetensors in the layout of another source, so that the source can load the file.

    `layout` is one of "attnlearn", "qkvo", "torch", "bert", "albert", "vit", "o_proj", "out_proj", "gpt2",
    "transformer_lens". Head dimensions and ranks as in the matching `to_` function. `kv_heads` is the number of keys and values that
    consecutive heads share; the layouts "qkvo", "o_proj" and "out_proj" write each once, and the others repeat it for every head.

    >>> import tempfile; path = tempfile.mkdtemp() + "/layer.safetensors"
    >>> save_layout(AttentionLayer.random(2, 6, rank=3), path, layout="o_proj", prefix="self_attn.")
    >>> load(path).num_heads
    2
    """
    require(layout in WRITABLE, "layout", f"must be one of {', '.join(WRITABLE)}", layout)
    if layout == "attnlearn":
        layer.save(path)
        return
    options: dict[str, Any] = {"tolerance": tolerance}
    if layout in SHARING:
        options["kv_heads"] = kv_heads
    if prefix is not None:
        options["prefix"] = prefix if prefix.endswith(".") or not prefix else f"{prefix}."
    tensors, scale = WRITABLE[layout](layer, options)
    metadata = {
        "format": layout,
        "num_heads": str(layer.num_heads),
        "scale": repr(scale),
        "causal": json.dumps(layer.causal),
        "attnlearn": __version__,
    }
    write_tensors(path, tensors, metadata)


def layout_of(path: str | os.PathLike[str], *, prefix: str | None = None) -> tuple[str, str]:
    """The layout of the attention block in a file, as `save_layout` names it, and the prefix of its tensors.

    >>> import tempfile; path = tempfile.mkdtemp() + "/layer.safetensors"
    >>> save_layout(AttentionLayer.random(2, 6, rank=3), path, layout="o_proj", prefix="self_attn.")
    >>> layout_of(path)
    ('o_proj', 'self_attn.')
    """
    source = open_source(path)
    if is_layer_file(source.metadata):
        return "attnlearn", ""
    found = choose_block(source.names, prefix, "path")
    if found.layout.name == "qkv_proj":
        output = found.names["output.weight"].removeprefix(found.prefix)
        return output.removesuffix(".weight"), found.prefix
    return found.layout.name, found.prefix


def _plain(layer: AttentionLayer, options: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], float]:
    arrays = to_qkvo(layer, tolerance=options["tolerance"], kv_heads=options["kv_heads"])
    prefix = options.get("prefix", "")
    return {prefix + name: array for name, array in arrays._asdict().items() if name != "scale"}, arrays.scale


def _writer(function: Any, query: str, width: Any, **fixed: Any) -> Any:
    """A writer of state and scale; the head dimension is read off the tensor whose name ends in `query`."""

    def write(layer: AttentionLayer, options: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], float]:
        state = function(layer, **fixed, **options)
        tensor = next(array for name, array in state.items() if name.endswith(query))
        return state, float(width(tensor, layer.num_heads) ** -0.5)

    return write


WRITABLE: dict[str, Any] = {
    "attnlearn": None,
    "qkvo": _plain,
    "torch": _writer(to_torch_state, "in_proj_weight", lambda t, m: t.shape[1] // m),
    "bert": _writer(to_bert, "query.weight", lambda t, m: t.shape[0] // m),
    "albert": _writer(to_bert, "query.weight", lambda t, m: t.shape[0] // m, names="albert"),
    "vit": _writer(to_bert, "query.weight", lambda t, m: t.shape[0] // m, names="vit"),
    "o_proj": _writer(to_qkv_proj, "q_proj.weight", lambda t, m: t.shape[0] // m, output="o_proj"),
    "out_proj": _writer(to_qkv_proj, "q_proj.weight", lambda t, m: t.shape[0] // m, output="out_proj"),
    "gpt2": _writer(to_gpt2, "c_attn.weight", lambda t, m: t.shape[0] // m),
    "transformer_lens": _writer(to_transformer_lens, "W_Q", lambda t, m: t.shape[2]),
}
"""Layouts that `save_layout` writes."""
SHARING = ("qkvo", "o_proj", "out_proj")
"""Layouts in which heads may share a key and a value."""


def _own(
    path: Path, num_heads: int | None, prefix: str | None, causal: bool | None, dtype: np.dtype | None
) -> AttentionLayer:
    require(prefix is None, "prefix", "must be left out for a file saved by attnlearn (one layer)", prefix)
    layer = layer_from_tensors(*read_tensors(path), path)
    rule = f"must be {layer.num_heads}, as the file says"
    require(num_heads is None or num_heads == layer.num_heads, "num_heads", rule, num_heads)
    layer = layer if causal is None else layer.replace(causal=causal)
    return layer if dtype is None else layer.astype(dtype)


def _as_said(layer: AttentionLayer, num_heads: int | None, causal: bool | None) -> AttentionLayer:
    """The layer of a model, which says its number of heads and its mask itself."""
    rule = f"must be {layer.num_heads}, as the configuration says"
    require(num_heads is None or num_heads == layer.num_heads, "num_heads", rule, num_heads)
    rule = f"must be {layer.causal}, as the model says"
    require(causal is None or causal == layer.causal, "causal", rule, causal)
    return layer
