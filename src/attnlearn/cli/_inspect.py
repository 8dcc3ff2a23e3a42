"""`attnlearn inspect`: what a layer is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnlearn.cli._console import Console, Json
from attnlearn.cli._outputs import require_outputs

Heads = Annotated[int | None, Parameter(name="--heads", help="Number of heads, where the file does not say.")]
Prefix = Annotated[str | None, Parameter(name="--prefix", help="Which layer of a file with several.")]


def inspect(layer: Path, /, *, heads: Heads = None, prefix: Prefix = None, json: Json = None) -> None:
    """Show a layer: shapes, heads, norms, effective ranks, biases, similarity of heads.

    Parameters
    ----------
    layer
        A safetensors file: attnlearn's own, or a model's attention weights in a known layout.
    """
    from dataclasses import asdict

    import numpy as np

    from attnlearn import load
    from attnlearn._summary import COLUMNS, format_cell, head_similarity, summarize

    require_outputs(json=json)
    found = load(layer, num_heads=heads, prefix=prefix)
    summaries = summarize(found)
    console = Console(json)
    console.text(
        f"{layer.name}: {found.num_heads} heads, tokens of dimension {found.dim}, outputs of dimension "
        f"{found.out_dim}, {'causal' if found.causal else 'not causal'}, {found.dtype}"
    )
    console.text(f"output bias: norm {np.linalg.norm(found.output_bias):.3g}")
    console.table(
        list(COLUMNS.values()), [[format_cell(getattr(head, name)) for name in COLUMNS] for head in summaries]
    )
    console.json(
        {
            "schema": "attnlearn/inspect",
            "version": 1,
            "file": layer.name,
            "num_heads": found.num_heads,
            "dim": found.dim,
            "out_dim": found.out_dim,
            "causal": found.causal,
            "dtype": str(found.dtype),
            "output_bias_norm": float(np.linalg.norm(found.output_bias)),
            "heads": [asdict(head) for head in summaries],
            "similarity": head_similarity(found).tolist(),
        }
    )
