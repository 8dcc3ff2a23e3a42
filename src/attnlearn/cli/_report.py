"""`attnlearn report`: the HTML page of a result that a command wrote with --json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnlearn.cli._console import Console, Json, Quiet
from attnlearn.cli._outputs import require_outputs


def report(
    result: Path,
    second: Path | None = None,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    truth: Path | None = None,
    quiet: Quiet = False,
    json: Json = None,
) -> None:
    """Turn a JSON result into one HTML file that opens without a network; two results are shown side by side.

    Parameters
    ----------
    result
        What recover, extract, leak, train or another command wrote with --json.
    second
        A second result of recover, extract, compress or train, to be shown beside the first.
    output
        The file to write; by default the result's name with .html.
    truth
        The true layer (safetensors), where it is known: the page then compares it with the answer.
    """
    from attnlearn.reporting import report as write

    target = result.with_suffix(".html") if output is None else output
    require_outputs(json=json, output=target)
    written = write(result, target, beside=second, truth=truth)
    console = Console(json, quiet)
    console.text(f"wrote {written}")
    console.json({"schema": "attnlearn/report", "version": 1, "file": written.name})
