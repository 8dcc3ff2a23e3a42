"""`attnlearn convert`: from one weight layout to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnlearn.cli._console import Console, Json
from attnlearn.cli._inspect import Heads, Prefix
from attnlearn.cli._outputs import require_outputs

Layout = Annotated[
    str,
    Parameter(
        name="--to",
        help="attnlearn, qkvo, torch, bert, albert, vit, o_proj, out_proj, gpt2 or transformer_lens.",
    ),
]


def convert(
    source: Path,
    target: Path,
    /,
    *,
    to: Layout = "attnlearn",
    tolerance: float | None = None,
    heads: Heads = None,
    prefix: Prefix = None,
    json: Json = None,
) -> None:
    """Read a layer in any known layout and write it in another.

    Parameters
    ----------
    source
        A safetensors file, or the folder of a saved model.
    target
        The file to write; it appears whole or not at all.
    tolerance
        What the factors of a layout with a fixed head dimension may lose of a head's norm.
    """
    from attnlearn import load
    from attnlearn.convert import save_layout

    require_outputs(json=json, output=target)
    layer = load(source, num_heads=heads, prefix=prefix)
    if to == "attnlearn":
        layer.save(target, provenance={"converted_from": source.name})
    else:
        save_layout(layer, target, layout=to, tolerance=tolerance)
    console = Console(json)
    console.text(f"wrote {target} ({to}): {layer!r}")
    console.json({"schema": "attnlearn/convert", "version": 1, "file": target.name, "layout": to})
