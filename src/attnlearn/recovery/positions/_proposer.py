"""The row of the table that looks for scores with positions: one family of kinds and one random start each time it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnlearn.engine import Tools
from attnlearn.recovery._problem import Candidate, Problem, Weights
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import Proposal, Trail
from attnlearn.recovery.positions._calibration import STARTS
from attnlearn.recovery.positions._kinds import Asked, Family, Kind, relative, rotary, widths
from attnlearn.recovery.positions._search import Search
from attnlearn.scores import Rotation, Visible, as_visible
from attnlearn.solve._by_offset import Footprints
from attnlearn.solve._calibration import LOOK_MOST, TRIES
from attnlearn.solve._diagnose import diagnose

CAUSES = {"position", "window", "distance"}
"""Causes of a misfit, and families that explain most of what a fit leaves, which scores with positions may mend."""


FOUND = Asked(None)


@dataclass(frozen=True)
class WithPositions(Proposer):
    """Scores that depend on positions (`positions`); asked again until a fit leaves nothing to explain."""

    name: str = "scores with positions"
    when: str = "what the best fit leaves depends on the offset of key and query"
    asked: Asked = FOUND
    repeats: ClassVar[bool] = True

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """If the caller names a kind, or the cause of a misfit is one that positions mend."""
        structure = None if trail.best is None else trail.best.structure
        if self.asked.kind is None and not {trail.cause(), structure} & CAUSES:
            return "nothing depends on the offset of key and query"
        return None

    def attempts(self, problem: Problem, signals: Signals) -> list[tuple[Family, int]]:
        """Families and the numbers of their starts, in order: every family once before any of them a second time."""
        shown = footprints_of(problem, signals)
        families = self.families(problem, signals, shown)
        starts = STARTS if self.asked.kind is None else TRIES
        return [(family, start) for start in range(starts) for family in families]

    def families(self, problem: Problem, signals: Signals, shown: Footprints | None) -> list[Family]:
        """The families that are asked for, or those that the signals name, the likeliest first."""
        examples, kind, reach = problem.examples, self.asked.kind, None if shown is None else shown.reach
        visible = problem.causal
        if not isinstance(visible, Visible):
            visible = as_visible(signals.causal if visible is None else visible, reach)
        if not (kind is None or isinstance(kind, str)):
            return [Family((kind,), visible)]
        turning = [rotary(width) for width in widths(examples.dim, problem.num_heads)]
        tables = [relative(examples.tokens)]
        plain: list[tuple[Kind, ...]] = [(None,)] if visible.window is not None else []
        found = turning + tables if shown is None or shown.turned else tables + turning
        chosen = {"rotary": turning, "relative": tables, None: plain + found}[kind]
        return [Family(kinds, visible) for kinds in chosen]

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The best fit of the next family from the next start."""
        number = len(trail.by(self.name))
        attempts = self.attempts(problem, signals)
        if number == len(attempts):
            return Proposal(evidence={"kinds": "all were tried"})
        family, start = attempts[number]
        name = f"positions {number}"
        saved = tools.resume_inner(name)
        done = trail.unfinished if saved is None else tuple(saved["done"])
        search = Search(problem, signals, family, tools, name, done)
        best, entry = search.run()
        evidence = entry | {"start": start, "window": family.visible.window}
        if tools.out_of_time and not best.exact:
            return Proposal(unfinished=tuple(search.done), evidence=evidence)
        layer = best.layer.canonical().astype(problem.examples.dtype)
        rank = layer.form.rank if isinstance(family.kinds[0], Rotation) else None
        return Proposal(Candidate(Weights.of(layer), rank, self.name, refined=True), evidence=evidence)


def footprints_of(problem: Problem, signals: Signals) -> Footprints | None:
    """What the examples show of offsets; None if they are too few."""
    sample = problem.fit_side(LOOK_MOST)
    return diagnose(sample.x, sample.y, sample.mask, signals.causal).offsets
