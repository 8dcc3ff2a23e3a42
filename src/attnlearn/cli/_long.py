"""What commands share: seed, quiet, JSON and report; the long ones also engine, checkpoint and how they end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from attnlearn.cli._console import Console, Json, Quiet, Report, Seed, with_command

if TYPE_CHECKING:
    from attnlearn._result import Solution


@Parameter(name="*")
@dataclass
class Common:
    """Options of every command that computes."""

    json: Json = None
    "Write the result as JSON to this file; - is standard output."

    report: Report = None
    "Write the result as one HTML file that needs no network."

    seed: Seed = 0
    "Seed of everything random."

    quiet: Quiet = False
    "Print errors only."

    @property
    def console(self) -> Console:
        """Where the text for people goes."""
        return Console(self.json, self.quiet)

    @property
    def progress(self) -> str:
        """How progress is shown: a bar on terminals, lines elsewhere."""
        if self.quiet:
            return "quiet"
        return "bar" if sys.stderr.isatty() else "plain"

    def publish(self, document: dict[str, Any]) -> None:
        """Write the document, with the command that made it, as JSON and as a report where these were asked for."""
        document = with_command(document)
        self.console.json(document)
        self.console.report(document, self.report)


@Parameter(name="*")
@dataclass
class Long(Common):
    """Options of every long command."""

    engine: str | None = None
    "Where to compute: a number of local processes, or dask:ADDRESS of a running cluster."

    checkpoint: Path | None = None
    "Folder for checkpoints, so that an interrupted run can go on."

    resume: Annotated[bool, Parameter(negative="")] = False
    "Go on from the checkpoint."

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments that every long library function takes."""
        from attnlearn._errors import require

        require(
            not self.resume or self.checkpoint is not None,
            "resume",
            "needs --checkpoint DIR",
            self.checkpoint,
        )
        folder = None if self.report is None else self.report.parent
        require(folder is None or folder.is_dir(), "report", "must be in a folder that exists", self.report)
        return {
            "engine": self.engine,
            "checkpoint": self.checkpoint,
            "resume": self.resume,
            "seed": self.seed,
            "progress": self.progress,
            "raise_on_failure": False,
        }


def finish(solution: Solution, output: Path | None, options: Long) -> int:
    """Write the layer, the JSON and the report, print the verdict, and return the exit code."""
    from attnlearn._result import Outcome
    from attnlearn.cli.__main__ import DONE, INTERRUPTED, NOT_CERTIFIED, ORACLE

    console = options.console
    written = None
    if output is not None and solution.layer is not None:
        solution.layer.save(
            output, provenance={"outcome": solution.outcome.name, "certified": solution.certified}
        )
        written = output
    document = with_command(solution.to_json(written))
    console.json(document)
    console.verdict(str(solution), solution.certified)
    console.report(document, options.report)
    if written is not None:
        console.text(f"wrote    {written}")
    if solution.outcome is Outcome.INTERRUPTED:
        return INTERRUPTED
    if solution.outcome is Outcome.ORACLE_FAILED:
        return ORACLE
    return DONE if solution.certified else NOT_CERTIFIED
