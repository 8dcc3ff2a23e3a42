"""The driver: signals first, then each row of the table; a candidate is fitted before the next row is asked.

The next step follows from the trail alone, so a run can be resumed after any of them. Every step is a phase of the run: its
name, its seconds and its evidence are what the report shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attnlearn.engine import Tools
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._problem import Candidate, Need, Problem
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._repairs import fit
from attnlearn.recovery._signals import Signals, measure
from attnlearn.recovery._trail import Trail

Step = Callable[[Problem, Trail, Tools], tuple[Trail, dict[str, Any]]]


def program(table: Sequence[Proposer]) -> Callable[[Trail], tuple[str, Step] | None]:
    """From the trail to the name and the function of the next step; None at the end."""

    def following(trail: Trail) -> tuple[str, Step] | None:
        if trail.signals is None:
            return "signals", _measured
        if trail.pending is not None:
            return "fit", _fitted
        if isinstance(trail.signals, Signals) and trail.row < len(table):
            return table[trail.row].name, Asked(table[trail.row])
        return None

    return following


def _measured(problem: Problem, trail: Trail, tools: Tools) -> tuple[Trail, dict[str, Any]]:
    found = measure(problem, tools)
    evidence = found.evidence if isinstance(found, Need) else found.evidence()
    return dataclasses.replace(trail, signals=found), evidence


@dataclass(frozen=True)
class Asked:
    """The step that asks one row; a row that is skipped shows no progress."""

    row: Proposer
    shows_itself: ClassVar[bool] = True

    def __call__(self, problem: Problem, trail: Trail, tools: Tools) -> tuple[Trail, dict[str, Any]]:
        row, signals = self.row, trail.signals
        assert isinstance(signals, Signals)
        closed = trail.closed if not row.always else None
        why = closed or row.suits(problem, signals) or row.wanted(problem, signals, trail)
        if why is not None:
            return dataclasses.replace(trail, row=trail.row + 1), {"skipped": why}
        with tools.progress.phase(row.name):
            found = row.propose(problem, signals, trail, tools)
        again, evidence = row.repeats and found.candidate is not None, dict(found.evidence)
        if found.unfinished is not None:
            return dataclasses.replace(trail, unfinished=found.unfinished), evidence
        if found.need is not None:
            evidence |= {"need": found.need.outcome.name, "examples_needed": found.need.examples}
        return trail.after(row.name, found, again=again), evidence


def _fitted(problem: Problem, trail: Trail, tools: Tools) -> tuple[Trail, dict[str, Any]]:
    signals, candidate = trail.signals, trail.pending
    assert isinstance(signals, Signals)
    assert candidate is not None
    found = fit(problem, signals, candidate, tools)
    unfinished = found.verdict is Verdict.UNFINISHED
    pending: Candidate | None = None
    if unfinished:  # a resumed run goes on from here
        pending = dataclasses.replace(candidate, weights=found.weights, rank=found.rank)
    finished = [fit for fit in trail.fits if fit.verdict is not Verdict.UNFINISHED]
    return dataclasses.replace(trail, fits=(*finished, found), pending=pending), found.evidence
