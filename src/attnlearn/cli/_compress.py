"""`attnlearn compress`: fewer heads, written in the layout of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from attnlearn.cli._inspect import Prefix
from attnlearn.cli._long import Long, finish, solved

SQUARE = ("torch", "bert", "albert", "vit", "gpt2")
"""Layouts whose heads have the width dim / heads."""


def compress(
    layer: Path,
    data: Path,
    /,
    *,
    heads: int,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    to: str | None = None,
    head_dim: int | None = None,
    prefix: Prefix = None,
    source_heads: int | None = None,
    options: Long | None = None,
) -> int:
    """Find the best layer with fewer heads on given activations, and the error for every number of heads.

    Parameters
    ----------
    layer
        A safetensors file with attention weights in a known layout.
    data
        A folder of recorded activations (see record and sample), or an .npz file with x and y; only x is read.
    heads
        Number of heads to end with.
    output
        Where to write the compressed layer.
    to
        Layout of the output; that of the source when left out.
    head_dim
        Width that every head must fit into; set by the layout where it fixes it.
    source_heads
        Number of heads of the source, where its file does not say.
    """
    import attnlearn
    from attnlearn.convert import layout_of, save_layout
    from attnlearn.data import Recorded

    options = options or Long()
    keywords = options.keywords(output)
    stored, tensors = layout_of(layer, prefix=prefix)
    recorded = Recorded(data)
    source = attnlearn.load(layer, num_heads=source_heads, prefix=prefix, dtype=recorded.dtype)
    layout = stored if to is None else to
    width = checked_width(layout, source, heads, head_dim)
    config = attnlearn.CompressConfig(head_dim=width)
    solution = solved(attnlearn.compress, source, recorded, num_heads=heads, config=config, **keywords)

    def save(path: Path) -> None:
        save_layout(solution.layer, path, layout=layout, prefix=tensors if to is None else None)

    rows = [[row["heads"], f"{row['error']:.3g}"] for row in solution.stats.get("curve", [])]
    options.console.table(["heads", "error"], rows)
    return finish(solution, output, options, None if layout == "attnlearn" else save)


def checked_width(layout: str, source: Any, heads: int, head_dim: int | None) -> int | None:
    """The width that the layout asks for; what cannot be written is refused before the work."""
    from attnlearn._errors import require
    from attnlearn.convert._safetensors import WRITABLE

    require(layout in WRITABLE, "to", f"must be one of {', '.join(WRITABLE)}", layout)
    if layout not in SQUARE:
        return head_dim
    rule = f"must divide the dimension {source.dim} in the layout {layout} (or choose another with --to)"
    require(heads >= 1 and source.dim % heads == 0, "heads", rule, heads)
    width = source.dim // heads
    rule = f"must be at most dim / heads = {width} in the layout {layout}"
    require(head_dim is None or head_dim <= width, "head_dim", rule, head_dim)
    return head_dim or width
