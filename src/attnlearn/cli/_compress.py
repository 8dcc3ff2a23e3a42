"""`attnlearn compress`: a smaller layer, written in the layout of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from attnlearn.cli._inspect import Prefix
from attnlearn.cli._long import Long, finish, solved

SQUARE = ("torch", "bert", "albert", "vit", "gpt2")
"""Layouts whose heads have the width dim / heads."""

COLUMNS = ("heads", "head_dim", "kv_heads", "latent", "kv_floats", "parameters", "error")


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def compress(
    layer: Path,
    data: Path | None = None,
    /,
    *,
    heads: int | None = None,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    latent: int | None = None,
    kv_floats: int | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    to: str | None = None,
    prefix: Prefix = None,
    source_heads: int | None = None,
    options: Long | None = None,
) -> int:
    """Find the best smaller layer on given activations, and what every size costs.

    Parameters
    ----------
    layer
        A safetensors file with attention weights in a known layout, or the folder of a saved model; or FILE.py:FUNCTION, which returns a torch model and batches, as for record: then every attention block is made smaller in turn, and --output is the folder for everything.
    data
        A folder of recorded activations (see record and sample), or an .npz file with x and y; only x is read.
    heads
        Number of heads to end with.
    head_dim
        Width of queries, keys and values; set by the layout where it fixes it.
    kv_heads
        Number of keys and values, each shared by as many heads.
    latent
        Length of one vector from which all keys and values are read.
    kv_floats
        Floats to keep for each token; the best shape that keeps no more is found.
    output
        Where to write the compressed layer.
    to
        Layout of the output; that of the source when left out.
    source_heads
        Number of heads of the source, where its file does not say.
    """
    import attnlearn
    from attnlearn._parts import is_plain
    from attnlearn.convert import layout_of, save_layout
    from attnlearn.data import Recorded

    options = options or Long()
    if data is None:
        sizes = {
            "num_heads": heads,
            "head_dim": head_dim,
            "kv_heads": kv_heads,
            "latent": latent,
            "kv_floats": kv_floats,
        }
        return _whole_model(str(layer), output, sizes, options)
    keywords = options.keywords(output)
    recorded = Recorded(data)
    source = attnlearn.load(layer, num_heads=source_heads, prefix=prefix, dtype=recorded.dtype)
    stored, tensors = layout_of(layer, prefix=prefix) if is_plain(source) else ("attnlearn", "")
    layout = stored if to is None else to
    others = {"kv_heads": kv_heads, "latent": latent, "kv_floats": kv_floats}
    width = checked_width(layout, source, heads, head_dim, any(value for value in others.values()))
    shapes = {"num_heads": heads, "head_dim": width, **others}
    solution = solved(attnlearn.compress, source, recorded, **shapes, **keywords)

    def save(path: Path) -> None:
        shared = None if latent is not None else solution.stats["shape"]["kv_heads"]
        names = tensors if to is None else None
        save_layout(solution.layer, path, layout=layout, prefix=names, kv_heads=shared)

    rows = [[_shown(row[name]) for name in COLUMNS] for row in solution.stats.get("curve", [])]
    options.console.table([name.replace("_", " ") for name in COLUMNS], rows)
    return finish(solution, output, options, None if layout == "attnlearn" else save)


def _whole_model(factory: str, output: Path | None, sizes: dict[str, int | None], options: Long) -> int:
    """Every attention block of a model in turn; 0 if all were made smaller with a certificate."""
    from attnlearn._errors import require
    from attnlearn._importing import resolve
    from attnlearn.whole import compress_model

    require(":" in factory, "data", "must be given, unless the layer is FILE.py:FUNCTION", None)
    require(output is not None, "output", "must name a folder when a whole model is compressed", None)
    assert output is not None
    require(
        options.report is None,
        "report",
        "must be left out for a whole model, whose results are in the folder of --output",
        options.report,
    )
    model, batches, *named = resolve(factory, "layer")()
    found = compress_model(
        model, batches, output, tokens=named[0] if named else None, target=options.target,
        time_limit=options.time_limit, seed=options.seed, progress=options.progress, **sizes,
    )  # fmt: skip
    console = options.console
    console.table(
        ["block", "outcome", "floats a token", "error", "in weights"], [b.row() for b in found.blocks]
    )
    console.text(found.sentence)
    for name in ("weights.safetensors", "model.safetensors"):
        if (output / name).exists():
            console.text(f"wrote    {output / name}")
    console.json(found.to_json())
    return 0 if found.achieved else 3


def checked_width(
    layout: str, source: Any, heads: int | None, head_dim: int | None, shaped: bool
) -> int | None:
    """The width that the layout asks for; what cannot be written is refused before the work.

    With fewer heads and nothing else asked for (`shaped` False), heads may grow as wide as the layout lets them.
    """
    from attnlearn._errors import require
    from attnlearn.convert._safetensors import WRITABLE

    require(layout in WRITABLE, "to", f"must be one of {', '.join(WRITABLE)}", layout)
    if layout not in SQUARE:
        return head_dim
    number = source.num_heads if heads is None else heads
    rule = f"must divide the dimension {source.dim} in the layout {layout} (or choose another with --to)"
    require(number >= 1 and source.dim % number == 0, "heads", rule, number)
    width = source.dim // number
    rule = f"must be at most dim / heads = {width} in the layout {layout}"
    require(head_dim is None or head_dim <= width, "head_dim", rule, head_dim)
    return width if head_dim is None and heads is not None and not shaped else head_dim
