"""`attnlearn sample`: examples of a layer, drawn from a data model, as a folder that `recover` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from attnlearn.cli._console import Console, Json, Seed
from attnlearn.cli._inspect import Heads, Prefix
from attnlearn.cli._outputs import require_outputs


def sample(
    layer: Path,
    folder: Path,
    /,
    *,
    num: Annotated[int, Parameter(name=["--num", "-n"])] = 20_000,
    tokens: int = 8,
    model: Literal["gaussian", "boolean"] = "gaussian",
    noise: float = 0.0,
    dtype: Literal["float64", "float32"] = "float64",
    heads: Heads = None,
    prefix: Prefix = None,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Draw examples (X, F(X)) of a layer and write them as a folder of recorded data.

    Parameters
    ----------
    layer
        A safetensors file in any known layout.
    folder
        The folder to write; it appears whole or not at all.
    num
        Number of sequences.
    tokens
        Tokens per sequence.
    model
        Distribution of the tokens.
    noise
        Standard deviation of Gaussian noise added to the outputs, relative to their root mean square.
    dtype
        Precision of the tokens and of the outputs.
    """
    import numpy as np

    from attnlearn import load
    from attnlearn._errors import require
    from attnlearn.data import Boolean, Gaussian, RecordedWriter

    require_outputs(json=json)
    require(num >= 1, "num", "must be at least 1", num)
    require(noise >= 0, "noise", "must be at least 0", noise)
    # Stored weights are converted before they are multiplied: in float64 heads then have their exact rank.
    found = load(layer, num_heads=heads, prefix=prefix, dtype=dtype)
    source = {"gaussian": Gaussian, "boolean": Boolean}[model](tokens, found.dim, dtype=dtype)
    with RecordedWriter(folder, causal=found.causal) as writer:
        scale = None
        for index, x in enumerate(source.stream(num, 4096, seed=seed)):
            y = found(x)
            if noise:
                scale = np.sqrt(np.mean(y**2)) if scale is None else scale
                rng = np.random.default_rng([seed, 0x40153, index])
                y = (y + noise * scale * rng.standard_normal(y.shape)).astype(y.dtype)
            writer.write(x, y)
    console = Console(json)
    console.text(f"wrote {num:,} sequences of {tokens} {model} tokens to {folder}")
    console.json(
        {
            "schema": "attnlearn/sample",
            "version": 1,
            "folder": folder.name,
            "sequences": num,
            "tokens": tokens,
        }
    )
