"""`attnlearn reproduce`: the papers' claims as figures with numbers beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from attnlearn.cli._console import Console, Json, Seed


def reproduce(
    claim: Literal["optimization"],
    /,
    *,
    plot: Path | None = None,
    short: Annotated[bool, Parameter(negative="")] = False,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Measure what a paper claims and show the numbers.

    Parameters
    ----------
    claim
        optimization: heads, examples, initializations, attention and bounds of gradient descent.
    plot
        Write the figures to this file (.png, .pdf or .svg).
    short
        Smaller problems, for a first look.
    """
    from attnlearn._certificate import jsonable
    from attnlearn.reproduce import optimization, plot_optimization

    figures = optimization(seed=seed, quick=short)
    console = Console(json)
    for name, part in figures.items():
        if isinstance(part, dict):
            console.text(f"{name}: {part.get('text', '')}")
    if plot is not None:
        plot_optimization(figures, plot)
        console.text(f"wrote {plot}")
    console.json(
        {"schema": "attnlearn/reproduce", "version": 1, "claim": claim, "figures": jsonable(figures)}
    )
