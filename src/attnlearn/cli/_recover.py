"""`attnlearn recover`: a layer from recorded or sampled examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnlearn.cli._long import Long, finish, solved


def recover(
    data: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    heads: int | None = None,
    method: str = "auto",
    causal: bool | None = None,
    start: Path | None = None,
    accuracy: float = 0.05,
    memory: str | None = None,
    options: Long | None = None,
) -> int:
    """Recover every head of a layer from random examples, with a certificate.

    Parameters
    ----------
    data
        A folder of recorded examples (see record and sample), or an .npz file with x and y.
    output
        Where to write the recovered layer (safetensors).
    heads
        Number of heads, if you know it; otherwise it is found.
    method
        auto (a table of proposers, see attnlearn explain), moment, wide, sculpt (the paper's algorithm) or linear (attention without a softmax, by least squares).
    causal
        Whether the layer is causal; found from the data when left out.
    start
        A layer that is nearly right (safetensors, any known layout): it is refined on the data and certified against them, without a search.
    accuracy
        How exact claims about outputs with noise or rounding must be to count as established.
    memory
        Refuse a run that is expected to need more, for example 1.5GB.
    """
    import attnlearn

    options = options or Long()
    keywords = options.keywords(output)
    solution = solved(
        attnlearn.recover,
        data,
        num_heads=heads,
        method=method,
        causal=causal,
        start=None if start is None else attnlearn.load(start),
        accuracy=accuracy,
        memory=memory,
        **keywords,
    )
    return finish(solution, output, options)
