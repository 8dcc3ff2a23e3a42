"""attnlearn's own file format: one safetensors file, tensors theta, w, query_bias, output_bias.

Metadata: `format` = "attnlearn/layer", `version`, `causal`, `provenance` (JSON: what made the file).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from attnlearn._attention import Parameters
from attnlearn._errors import one_line
from attnlearn._files import read_tensors, write_tensors
from attnlearn._layer import AttentionLayer
from attnlearn._version import __version__

FORMAT, LINEAR_FORMAT = "attnlearn/layer", "attnlearn/linear-layer"
VERSION = "1"


def save_layer(
    layer: AttentionLayer,
    path: str | os.PathLike[str],
    provenance: Mapping[str, Any] | None,
    layer_format: str = FORMAT,
) -> None:
    """See `AttentionLayer.save`; the weights of a linear layer are written with its own format."""
    metadata = {
        "format": layer_format,
        "version": VERSION,
        "causal": json.dumps(layer.causal),
        "provenance": json.dumps({"attnlearn": __version__, **(provenance or {})}),
    }
    write_tensors(path, layer.parameters._asdict(), metadata)


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
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"path: must have layer format version {VERSION}, got {one_line(str(metadata.get('version')), 40)} in {path}"
        )
    missing = [name for name in Parameters._fields if name not in tensors]
    if missing:
        raise ValueError(
            f"path: must hold the tensors {', '.join(Parameters._fields)}, got {path} without {missing[0]}"
        )
    causal = metadata.get("causal", "false") == "true"
    return AttentionLayer(*(tensors[name] for name in Parameters._fields), causal=causal)
