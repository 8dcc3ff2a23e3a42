"""`attnlearn extract`: a layer from answers to chosen queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnlearn.cli._long import Long, finish, solved

OracleSpec = Annotated[
    str,
    Parameter(
        name="--oracle",
        help="FILE.py:FUNCTION (tokens (n, k, d) to outputs), http(s)://ADDRESS (bearer token from ATTNLEARN_ORACLE_SECRET), "
        "process:PROGRAM ARGUMENTS, or a layer file.",
    ),
]

Timeout = Annotated[float | None, Parameter(name="--timeout")]
Retries = Annotated[int | None, Parameter(name="--retries")]


def extract(
    *,
    oracle: OracleSpec,
    dim: int | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    heads: int | None = None,
    budget: int | None = None,
    cache: Path | None = None,
    timeout: Timeout = None,
    retries: Retries = None,
    options: Long | None = None,
) -> int:
    """Recover every head of a layer by asking it sequences of our choice.

    Parameters
    ----------
    dim
        Dimension of the tokens; asked from the oracle when left out.
    output
        Where to write the recovered layer (safetensors).
    heads
        Number of heads, if you know it; otherwise it is found.
    budget
        Largest number of sequences to ask.
    cache
        Folder for answers, so that an interrupted run does not ask twice.
    timeout
        Seconds that one call of the oracle may take (60), and that it may ask us to wait.
    retries
        How often a call that failed is tried again (2).
    """
    import attnlearn
    from attnlearn.oracle import parse

    options = options or Long()
    keywords = options.keywords(output)
    with parse(oracle, timeout=timeout, retries=retries) as asked:
        solution = solved(
            attnlearn.extract, asked, dim, num_heads=heads, budget=budget, cache=cache, **keywords
        )
    return finish(solution, output, options)
