"""`attnlearn recover`: a layer from recorded or sampled examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
    positions: Literal["found", "none", "rotary", "relative"] = "found",
    start: Path | None = None,
    accuracy: float = 0.05,
    memory: str | None = None,
    layers: str | None = None,
    max_sequences: int | None = None,
    options: Long | None = None,
) -> int:
    """Recover every head of a layer from random examples, with a certificate.

    Parameters
    ----------
    data
        A folder of recorded examples (see record and sample), or an .npz file with x and y; with --layers FILE.py:FUNCTION.
    output
        Where to write the recovered layer (safetensors).
    heads
        Number of heads, if you know it; otherwise it is found.
    method
        auto (a table of proposers, see attnlearn explain), moment, wide, sculpt (the paper's algorithm) or linear (attention without a softmax, by least squares).
    causal
        Whether the layer is causal; found from the data when left out.
    positions
        How scores depend on positions: found (where no layer without them fits), none, rotary (the usual bases and widths of heads) or relative (a table by offset).
    start
        A layer that is nearly right (safetensors, any known layout): it is refined on the data and certified against them, without a search.
    accuracy
        How exact claims about outputs with noise or rounding must be to count as established.
    memory
        Refuse a run that is expected to need more, for example 1.5GB.
    layers
        all, or names of attention blocks with commas between them: then DATA is FILE.py:FUNCTION, as for record, every block is recorded and recovered in turn, and --output is the folder for everything. A run that was interrupted goes on where it stopped.
    max_sequences
        With --layers: record so many sequences of each block.
    """
    import attnlearn

    options = options or Long()
    if layers is not None:
        return _whole_model(str(data), output, layers, max_sequences, accuracy, memory, options)
    keywords = options.keywords(output)
    solution = solved(
        attnlearn.recover,
        data,
        num_heads=heads,
        method=method,
        causal=causal,
        positions=None if positions == "found" else positions,
        start=None if start is None else attnlearn.load(start),
        accuracy=accuracy,
        memory=memory,
        **keywords,
    )
    return finish(solution, output, options)


def _whole_model(
    factory: str, output: Path | None, layers: str, most: int | None, accuracy: float, memory: str | None, options: Long
) -> int:  # fmt: skip
    """Every attention block of a model in turn; 0 if all were certified."""
    from attnlearn._errors import require
    from attnlearn._importing import resolve
    from attnlearn.whole import recover_model

    require(output is not None, "output", "must name a folder with --layers", None)
    assert output is not None
    require(
        options.report is None,
        "report",
        "must be left out for a whole model, whose results are in the folder of --output",
        options.report,
    )
    model, batches, *named = resolve(factory, "data")()
    console = options.console
    found = recover_model(
        model, batches, output, layers=layers if layers == "all" else layers.split(","), max_sequences=most,
        accuracy=accuracy, memory=memory, time_limit=options.time_limit, seed=options.seed, progress=options.progress,
        tokens=named[0] if named else None,
    )  # fmt: skip
    console.table(["block", "outcome", "certified", "heads", "error", "seconds"], found.rows())
    console.text(found.sentence)
    console.text(f"report   {(output / 'index.html').resolve()}")
    console.json(found.to_json())
    return 0 if found.achieved else 3
