"""attnlearn's own file format: one safetensors file, tensors theta, w, query_bias, output_bias.

Metadata: `format` = "attnlearn/layer", `version`, `causal`, `provenance` (JSON: what made the file). A layer with positions has
the tensors of its scores instead of theta and query_bias, and `scores` (JSON: the kind and its fixed numbers); a window or a
prefix is in `mask` (JSON). `support_mean` and `support_basis` are the span of the tokens that it was learned from, where it is kept. Such files have version 2, so that older readers refuse them instead of losing what they do not know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn._base import Layer
from attnlearn._canonical import Support
from attnlearn._errors import one_line
from attnlearn._files import read_tensors, write_tensors
from attnlearn._layer import AttentionLayer
from attnlearn._version import __version__
from attnlearn.scores import Visible, as_visible, build, describe
from attnlearn.scores._kinds import array_names

FORMAT, LINEAR_FORMAT = "attnlearn/layer", "attnlearn/linear-layer"
VERSION, WITH_POSITIONS = "1", "2"
SUPPORT = ("support_mean", "support_basis")


def save_layer(
    layer: Layer,
    path: str | os.PathLike[str],
    provenance: Mapping[str, Any] | None,
    layer_format: str = FORMAT,
    support: Support | None = None,
) -> None:
    """See `AttentionLayer.save`; a linear layer has a format of its own."""
    plain = layer.plain_scores and layer.visible == Visible(layer.causal)
    metadata = {
        "format": layer_format,
        "version": VERSION if plain else WITH_POSITIONS,
        "causal": json.dumps(layer.causal),
        "provenance": json.dumps({"attnlearn": __version__, **(provenance or {})}),
    }
    if not plain:
        metadata["scores"] = json.dumps(describe(layer.form))
        metadata["mask"] = json.dumps(layer.visible._asdict())
    tensors = dict(layer.parameters._asdict() if plain else layer.arrays())
    if support is not None:
        tensors |= {name: np.ascontiguousarray(part) for name, part in zip(SUPPORT, support)}
    write_tensors(path, tensors, metadata)


def load_support(path: str | os.PathLike[str]) -> Support | None:
    """The span of tokens that a layer's file keeps, None if it keeps none or is not attnlearn's."""
    target = Path(path)
    if target.suffix != ".safetensors" or not target.is_file():
        return None
    tensors, metadata = read_tensors(target)
    if not is_layer_file(metadata) or any(name not in tensors for name in SUPPORT):
        return None
    mean, basis = (np.asarray(tensors[name], np.float64) for name in SUPPORT)
    fits = mean.ndim == 1 and basis.ndim == 2 and len(basis) == len(mean)
    if not fits or not (np.isfinite(mean).all() and np.isfinite(basis).all()):
        raise ValueError(f"path: must have a support of shapes (d,) and (d, r), finite, got {path}")
    return Support(mean, basis)


def is_layer_file(metadata: Mapping[str, str], layer_format: str = FORMAT) -> bool:
    """Whether a safetensors file's metadata say that attnlearn wrote it, as a layer of that kind."""
    return metadata.get("format") == layer_format


def load_layer(path: str | os.PathLike[str], layer_format: str = FORMAT) -> AttentionLayer:
    """See `AttentionLayer.load`."""
    tensors, metadata = read_tensors(path)
    return layer_from_tensors(tensors, metadata, path, layer_format)


def layer_from_tensors(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str],
    path: str | os.PathLike[str],
    layer_format: str = FORMAT,
) -> AttentionLayer:
    """The layer in an attnlearn file that is already read."""
    if not is_layer_file(metadata, layer_format):
        kind = "linear-attention layer" if layer_format == LINEAR_FORMAT else "layer"
        raise ValueError(
            f"path: must be a {kind} saved by attnlearn, got {path} (attnlearn.load reads models' layouts)"
        )
    if metadata.get("version") not in (VERSION, WITH_POSITIONS):
        raise ValueError(
            f"path: must have layer format version {VERSION} or {WITH_POSITIONS}, got {one_line(str(metadata.get('version')), 40)} in {path}"
        )
    described, visible = _described(metadata, path)
    wanted = (*array_names(described), "w", "output_bias")
    missing = [name for name in wanted if name not in tensors]
    if missing:
        raise ValueError(f"path: must hold the tensors {', '.join(wanted)}, got {path} without {missing[0]}")
    named = {name: tensors[name] for name in wanted}
    if described["kind"] == "bilinear":
        return AttentionLayer(**named, causal=visible)
    form = _scores(described, named, path)
    return AttentionLayer.from_scores(form, named["w"], named["output_bias"], causal=visible)


def _described(metadata: Mapping[str, str], path: str | os.PathLike[str]) -> tuple[dict[str, Any], Visible]:
    """The kind of scores and the mask that the metadata say."""
    if metadata.get("version") == VERSION:
        return {"kind": "bilinear"}, Visible(metadata.get("causal", "false") == "true")
    try:
        described, mask = json.loads(metadata["scores"]), json.loads(metadata["mask"])
        array_names(described)  # a kind that is not known is refused
        return dict(described), as_visible(**mask)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"path: must say the kind of its scores and its mask, got {path}: {one_line(str(error), 100)}"
        ) from error


def _scores(described: Mapping[str, Any], named: Mapping[str, Any], path: str | os.PathLike[str]) -> Any:
    try:
        return build(described, named)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"path: must hold scores that fit together, got {path}: {one_line(str(error), 100)}"
        ) from error
