"""`attnlearn leak`: how much of a layer its answers give away, and what rounding or noise would change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from attnlearn.cli._extract import OracleSpec, Retries, Timeout
from attnlearn.cli._long import Common


def leak(
    *,
    oracle: OracleSpec,
    dim: int | None = None,
    decimals: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")] = None,
    noise: Annotated[list[float] | None, Parameter(consume_multiple=True, negative="")] = None,
    budget: int | None = None,
    cache: Path | None = None,
    timeout: Timeout = None,
    retries: Retries = None,
    plot: Path | None = None,
    options: Common | None = None,
) -> None:
    """Show the error reached against sequences, tokens and scalars spent, as a table and a plot.

    Parameters
    ----------
    dim
        Dimension of the tokens; asked from the oracle when left out.
    decimals
        Digits after the point to which answers are rounded, beside the answers as they are.
    noise
        Standard deviations of noise added to the answers, beside none.
    budget
        Largest number of sequences to ask per setting.
    cache
        Folder for answers, so that an interrupted run does not ask twice.
    timeout
        Seconds that one call of the oracle may take (60), and that it may ask us to wait.
    retries
        How often a call that failed is tried again (2).
    plot
        Write the curves to this file (.png, .pdf or .svg).
    """
    from attnlearn._errors import OracleError
    from attnlearn.extraction import leak as measure
    from attnlearn.oracle import parse

    options = options or Common()
    options.check(plot=plot)
    try:
        with parse(oracle, timeout=timeout, retries=retries) as asked:
            found = measure(
                asked,
                dim,
                decimals=(None, *(decimals or ())),
                noise=(0.0, *(noise or ())),
                budget=budget,
                cache=cache,
                seed=options.seed,
                progress=options.progress,
            )
    except (KeyboardInterrupt, OracleError) as ending:
        finished = getattr(ending, "leak", None)
        if finished is not None and finished.rows:
            _show(finished, plot, options)
        raise
    _show(found, plot, options)


def _show(found: Any, plot: Path | None, options: Common) -> None:
    """The table, the JSON, the report and the picture of whatever settings are finished."""
    from attnlearn._certificate import jsonable
    from attnlearn._files import atomic_path

    columns = ("decimals", "noise", "phase", "sequences", "tokens", "scalars", "error")
    options.console.table(columns, [[_cell(row.get(name)) for name in columns] for row in found.rows])

    def draw() -> None:
        if plot is not None:
            with atomic_path(plot) as temporary:
                found.plot().figure.savefig(temporary, format=plot.suffix.lstrip("."))
            options.console.text(f"wrote {plot}")

    options.publish({"schema": "attnlearn/leak", "version": 1, "rows": jsonable(found.rows)}, draw)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2g}" if isinstance(value, float) else str(value)
