"""`attnlearn inspect`: what a layer is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from attnlearn.cli._console import Console, Json
from attnlearn.cli._outputs import require_outputs

if TYPE_CHECKING:
    from attnlearn._layer import AttentionLayer
    from attnlearn._summary import HeadSummary

Curve = dict[str, list[float]]
Heads = Annotated[int | None, Parameter(name="--heads", help="Number of heads, where the file does not say.")]
Prefix = Annotated[str | None, Parameter(name="--prefix", help="Which layer of a file with several.")]

TOKENS = 32
"""Tokens of the Gaussian inputs on which attention by offset is measured."""

SHOWN = (-16, -8, -4, -3, -2, -1, 0, 1, 2, 4, 8)
"""Offsets in the table; the JSON has all."""


def inspect(layer: Path, /, *, heads: Heads = None, prefix: Prefix = None, json: Json = None) -> None:
    """Show a layer: shapes, heads, norms, effective ranks, biases, similarity of heads, attention by offset.

    Parameters
    ----------
    layer
        A safetensors file: attnlearn's own, or a model's attention weights in a known layout; or the folder of a saved model.
    """
    from dataclasses import asdict

    import numpy as np

    from attnlearn import load
    from attnlearn._maps import attention_json
    from attnlearn._summary import head_similarity, summarize
    from attnlearn.scores import words

    require_outputs(json=json)
    found = load(layer, num_heads=heads, prefix=prefix)
    summaries = summarize(found)
    attended = attention_json(found, {"tokens": TOKENS, "method": "inspect"})
    curves = [head["by_offset"] for head in attended["heads"]]
    console = Console(json)
    _tell(console, layer.name, found, summaries, curves)
    console.json(
        {
            "schema": "attnlearn/inspect",
            "version": 1,
            "file": layer.name,
            "num_heads": found.num_heads,
            "dim": found.dim,
            "out_dim": found.out_dim,
            "causal": found.causal,
            "window": found.window,
            "positions": words(found.form),
            "by_offset": curves,
            "dtype": str(found.dtype),
            "output_bias_norm": float(np.linalg.norm(found.output_bias)),
            "heads": [asdict(head) for head in summaries],
            "similarity": head_similarity(found).tolist(),
        }
    )


def _tell(
    console: Console, name: str, found: AttentionLayer, heads: list[HeadSummary], curves: list[Curve]
) -> None:
    """The layer in words and tables."""
    import numpy as np

    from attnlearn._summary import COLUMNS, format_cell
    from attnlearn.scores import words

    console.text(
        f"{name}: {found.num_heads} heads, tokens of dimension {found.dim}, outputs of dimension "
        f"{found.out_dim}, {'causal' if found.causal else 'not causal'}, {found.dtype}"
    )
    if not found.plain_scores or found.window is not None:
        window = "" if found.window is None else f", keys fewer than {found.window} places away"
        console.text(f"positions: {words(found.form)}{window}; Theta and c are those at offset 0")
    console.text(f"output bias: norm {np.linalg.norm(found.output_bias):.3g}")
    console.table(
        list(COLUMNS.values()), [[format_cell(getattr(head, name)) for name in COLUMNS] for head in heads]
    )
    if not found.plain_scores or found.window is not None:
        _curves(console, curves)


def _curves(console: Console, curves: list[Curve]) -> None:
    """Attention by offset, one row a head, where any head attends at all."""
    shares = [dict(zip(curve["offset"], curve["share"])) for curve in curves]
    shown = [offset for offset in SHOWN if any(head.get(offset) for head in shares)]
    rows = [[str(i), *(f"{head.get(o, 0.0):.3g}" for o in shown)] for i, head in enumerate(shares)]
    console.text(f"attention by offset (key minus query), on Gaussian inputs of {TOKENS} tokens")
    console.table(["head", *(f"{offset:+d}" if offset else "0" for offset in shown)], rows)
