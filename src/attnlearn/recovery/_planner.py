"""The plan of a run, told once the signals are known, and again where the heads or errors in the outputs change it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from attnlearn.engine import Tools
from attnlearn.recovery._calibration import CLEAR
from attnlearn.recovery._explain import Look, rows_of, size_of
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._plan import Plan, Size, make_plan
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import Trail


class Planner:
    """Plans for one run; `plan` is the last one that was told, at first the one that may refuse what does not fit into memory."""

    def __init__(
        self, table: Sequence[Proposer], problem: Problem, drawn: bool, refusing: Plan, tools: Tools
    ) -> None:
        self.table, self.problem, self.drawn, self.tools = table, problem, drawn, tools
        self.plan, self.told, self.began = refusing, False, time.monotonic()

    def look(self, trail: Trail) -> None:
        """Tell what the run should take if more is known than before, and the last plan is off by a factor of two."""
        if not isinstance(trail.signals, Signals) or trail.settled:
            return
        if self.told and trail.pending is None and not carries_errors(trail):
            return
        left, spent = planned(self.table, self.problem, trail, self.drawn), time.monotonic() - self.began
        now = replace(
            left,
            seconds=spent + left.seconds,
            seconds_with_errors=spent + left.seconds_with_errors,
            memory_limit=self.plan.memory_limit,
        )
        if self.told and 1 / CLEAR < now.seconds / self.plan.seconds < CLEAR:
            return
        self.plan, self.told = now, True
        with self.tools.progress.phase("plan"):
            self.tools.progress.update(**now.figures())
        self.tools.progress.expect(left.seconds)


def planned(table: Sequence[Proposer], problem: Problem, trail: Trail, drawn: bool) -> Plan:
    """The plan of what is left of a run: at first the signals alone are known, then the heads, and at last whether outputs carry errors."""
    signals, found, best = trail.signals, trail.pending, trail.best
    assert isinstance(signals, Signals)
    if found is not None:
        size = Size(found.weights.heads, found.rank, proposed=True)
    elif best is not None:
        size = Size(best.weights.heads, best.rank, proposed=True)
    else:
        size = size_of(rows_of(table, problem, signals), problem, signals, Look(None, None, None))
    size = size._replace(errors=signals.rounded or carries_errors(trail))
    return make_plan(problem.examples, len(problem.split.fit), size, drawn, None)


def carries_errors(trail: Trail) -> bool:
    """Whether the best fit leaves errors that nothing explains."""
    return trail.best is not None and trail.best.verdict is Verdict.NOISE
