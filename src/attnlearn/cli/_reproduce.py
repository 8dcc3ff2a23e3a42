"""`attnlearn reproduce`: the papers' claims as figures with numbers beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from attnlearn.cli._long import Common


def reproduce(
    claim: Literal["optimization", "learning", "hardness"],
    /,
    *,
    plot: Path | None = None,
    short: Annotated[bool, Parameter(negative="")] = False,
    long: Annotated[bool, Parameter(negative="")] = False,
    checkpoint: Path | None = None,
    options: Common | None = None,
) -> None:
    """Measure what a paper claims and show the numbers.

    Parameters
    ----------
    claim
        optimization: heads, examples, initializations, attention and bounds of gradient descent. learning: crude sum, widths, hull and recovery error of sculpting against d, k and m. hardness: success of every learner on generic and on hard layers, and the statistical-query bound.
    plot
        Write the figures to this file (.png, .pdf or .svg).
    short
        Smaller problems, for a first look.
    long
        More and larger problems (learning and hardness only): many hours.
    checkpoint
        Folder that keeps finished cases, from which an interrupted run goes on (learning and hardness only).
    """
    import sys

    from attnlearn import reproduce as figures_of
    from attnlearn._certificate import jsonable
    from attnlearn._errors import require
    from attnlearn.reporting._reproduction import CLAIMS

    options = options or Common()
    require(not (short and long), "long", "cannot go with --short", long)
    show = None if options.quiet else lambda line: print(line, file=sys.stderr, flush=True)
    options.check(plot=plot, checkpoint=checkpoint)
    if claim == "optimization":
        require(not long, "long", "goes with learning and hardness", long)
        require(checkpoint is None, "checkpoint", "goes with learning and hardness", checkpoint)
        figures = figures_of.optimization(seed=options.seed, quick=short, show=show)
    else:
        measure = figures_of.learning if claim == "learning" else figures_of.hardness
        try:
            figures = measure(seed=options.seed, quick=short, long=long, checkpoint=checkpoint, show=show)
        except KeyboardInterrupt:
            if show is not None and checkpoint is not None:
                show(f"finished cases are kept: the same command goes on from {checkpoint}")
            raise
    console = options.console
    for name, part in figures.items():
        console.text(f"\n{CLAIMS.get(name, name)}")
        for line in figures_of.describe(name, part).replace("; ", "\n").split("\n"):
            console.text(f"  {line}")

    def draw() -> None:
        if plot is not None:
            figures_of.plot(figures, plot)
            console.text(f"wrote {plot}")

    shown = {name: {"text": figures_of.describe(name, part), **part} for name, part in figures.items()}
    options.publish(
        {"schema": "attnlearn/reproduce", "version": 1, "claim": claim, "figures": jsonable(shown)}, draw
    )
