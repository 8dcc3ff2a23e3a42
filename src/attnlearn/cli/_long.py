"""What commands share: seed, quiet, JSON and report; the long ones also engine, checkpoint and how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from attnlearn.cli._console import Console, Json, Quiet, Report, Seed, with_command
from attnlearn.cli._outputs import Writes, require_outputs

if TYPE_CHECKING:
    from attnlearn._result import Solution


OUTPUT = Group("Output", sort_key=2)
RUN = Group("How to run", sort_key=1)


@Parameter(name="*")
@dataclass
class Common:
    """Options of every command that computes."""

    json: Annotated[Json, Parameter(group=OUTPUT)] = None
    "Write the result as JSON to this file; - is standard output."

    report: Annotated[Report, Parameter(group=OUTPUT)] = None
    "Write the result as one HTML file that needs no network."

    seed: Annotated[Seed, Parameter(group=RUN)] = 0
    "Seed of everything random."

    quiet: Annotated[Quiet, Parameter(group=OUTPUT)] = False
    "Print nothing but one line if the command fails."

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

    def check(
        self, output: Path | None = None, plot: Path | None = None, checkpoint: Path | None = None
    ) -> None:
        """Refuse, before the work starts, what could not be written at its end."""
        require_outputs(json=self.json, output=output, report=self.report, plot=plot, checkpoint=checkpoint)

    def publish(self, document: dict[str, Any], *writes: Callable[[], Any]) -> None:
        """Write the document, with the command that made it, as JSON and as a report where these were asked for.

        Further `writes` come after them; each is tried, whatever became of the others.
        """
        document = with_command(document)
        tried = Writes()
        tried.attempt(lambda: self.console.json(document))
        tried.attempt(lambda: self.console.report(document, self.report))
        for write in writes:
            tried.attempt(write)
        tried.end()


@Parameter(name="*")
@dataclass
class Long(Common):
    """Options of every long command."""

    target: Annotated[float | None, Parameter(group=RUN)] = None
    "Error that is enough: of the function, against the source of a compression, or the training loss."

    time_limit: Annotated[float | None, Parameter(group=RUN)] = None
    "Seconds after which the run ends with the best answer so far; with a checkpoint it can be resumed."

    engine: Annotated[str | None, Parameter(group=RUN)] = None
    "Where to compute: a number of local processes, or dask:ADDRESS of a running cluster."

    checkpoint: Annotated[Path | None, Parameter(group=RUN)] = None
    "Folder for checkpoints, so that an interrupted run can go on."

    resume: Annotated[bool, Parameter(negative="", show_default=False, group=RUN)] = False
    "Go on from the checkpoint."

    def keywords(self, output: Path | None = None) -> dict[str, Any]:
        """Keyword arguments that every long library function takes, once everything it will need is there."""
        from attnlearn._errors import require

        require_outputs(
            json=self.json,
            output=output,
            report=self.report,
            checkpoint=self.checkpoint,
            engine=self.engine,
        )
        require(
            not self.resume or self.checkpoint is not None,
            "resume",
            "needs --checkpoint DIR",
            self.checkpoint,
        )
        return {
            "target": self.target,
            "time_limit": self.time_limit,
            "engine": self.engine,
            "checkpoint": self.checkpoint,
            "resume": self.resume,
            "seed": self.seed,
            "progress": self.progress,
            "raise_on_failure": False,
        }


def solved(run: Callable[..., Solution], *arguments: Any, **keywords: Any) -> Solution:
    """What a library function returns, or what it had learned when Ctrl-C ended it."""
    try:
        return run(*arguments, **keywords)
    except KeyboardInterrupt as interrupt:
        solution = getattr(interrupt, "solution", None)
        if solution is None:
            raise
        return solution


def finish(
    solution: Solution, output: Path | None, options: Long, save: Callable[[Path], None] | None = None
) -> int:
    """Write the layer (by `save`, if given), the JSON and the report, print the verdict, and return the exit code."""
    from attnlearn.cli.__main__ import complain

    console, writes = options.console, Writes()
    written = None

    def save_layer(path: Path) -> None:
        about = {
            "outcome": solution.outcome.name,
            "achieved": solution.achieved,
            "certified": solution.certified,
        }
        kept = {"support": solution.stats["support"]} if solution.stats.get("support") is not None else {}
        solution.layer.save(path, provenance=about, **kept)

    if output is not None and solution.layer is not None:
        written = output if writes.attempt(lambda: (save or save_layer)(output)) else None
    document = with_command(solution.to_json(written))
    writes.attempt(lambda: console.json(document))
    writes.attempt(lambda: console.solution(solution))
    writes.attempt(lambda: console.report(document, options.report))
    if written is not None:
        writes.attempt(lambda: console.text(f"wrote    {written}"))
    for line in next_steps(solution, options, written):
        writes.attempt(lambda line=line: console.text(line))
    code = _code(solution)
    if options.quiet and code:
        writes.attempt(lambda: complain(f"{solution.outcome.name}: {solution.verdict}", code))
    writes.end()
    return code


def next_steps(solution: Solution, options: Long, written: Path | None) -> list[str]:
    """What a user may want to type next, given what this run wrote."""
    from attnlearn._result import Outcome

    told = []
    if solution.outcome in (Outcome.INTERRUPTED, Outcome.BUDGET_SPENT):
        kept = "the same command with --resume goes on from here"
        lost = "give --checkpoint DIR next time: a run that was stopped can then go on"
        told.append(f"next     {kept if options.checkpoint is not None else lost}")
    if solution.layer is None:
        return told
    if options.report is None and options.json not in (None, "-"):
        told.append(f"next     attnlearn report {options.json}")
    elif options.report is None:
        told.append("next     --report report.html shows every head in a page")
    if written is not None and solution.achieved and hasattr(solution.layer, "patterns"):
        told.append(f"next     attnlearn inspect {written}" if _inspectable(solution) else "")
    return [line for line in told if line]


def _inspectable(solution: Solution) -> bool:
    from attnlearn._layer import AttentionLayer

    return isinstance(solution.layer, AttentionLayer)


def _code(solution: Solution) -> int:
    from attnlearn._result import Outcome
    from attnlearn.cli.__main__ import DONE, INTERRUPTED, NOT_ACHIEVED, ORACLE

    if solution.outcome is Outcome.INTERRUPTED:
        return INTERRUPTED
    if solution.outcome is Outcome.ORACLE_FAILED:
        return ORACLE
    return DONE if solution.achieved else NOT_ACHIEVED
