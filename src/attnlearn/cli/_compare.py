"""`attnlearn compare`: which head is which, and how far apart they are."""

from __future__ import annotations

from pathlib import Path

from attnlearn.cli._console import Console, Json
from attnlearn.cli._outputs import require_outputs


def compare(a: Path, b: Path, data: Path | None = None, /, *, json: Json = None) -> None:
    """Match the heads of two layers and say how far apart they are.

    Parameters
    ----------
    a
        A safetensors file with a layer.
    b
        A safetensors file with the layer to compare it with; distances are relative to its heads.
    data
        A folder of recorded activations, or an .npz file with x and y: only what these tokens can show is compared. Without it the span that a recovered layer's file keeps is used, if there is one.
    """
    import attnlearn

    require_outputs(json=json)
    found = attnlearn.compare(a, b, data)
    console = Console(json)
    console.text(str(found))
    console.json(found.to_json())
