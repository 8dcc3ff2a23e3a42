"""Rows that read the heads from a third-order moment of the data (`moment/`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnlearn._result import Outcome
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._problem import Candidate, Need, Problem
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import Proposal, Trail
from attnlearn.recovery.moment import Heads, Moment, count_heads, examples_needed, take_moment, unmix
from attnlearn.solve._unknowns import unknowns


@dataclass(frozen=True)
class FromMoment(Proposer):
    """Heads that a third-order moment of the data shows above its noise (`moment`)."""

    name: str = "moment"
    when: str = "always"

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """Unless it does not model the tokens, and the heads that were found on them leave less than a missing head would."""
        best = trail.best
        if signals.modelled or best is None or not best.verdict.explains or best.tentative:
            return None
        return "the best fit misses no head" if best.select_error < calibration.NOTICEABLE else None

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The heads that some examples show clearly; those of every example where some do not."""
        moment, evidence = take_moment(problem, signals, tools)
        found = self.heads(problem, signals, moment, evidence, tools)
        unclear = found.need is not None and found.need.outcome is Outcome.TOO_FEW_EXAMPLES
        if not unclear or moment.examples == len(signals.fit):
            return found
        moment, evidence = take_moment(problem, signals, tools, every=True)
        return self.heads(problem, signals, moment, evidence, tools)

    def heads(
        self, problem: Problem, signals: Signals, moment: Moment, evidence: dict, tools: Tools
    ) -> Proposal:
        """Count and unmix the heads of a moment."""
        num, given = problem.examples.num, problem.num_heads

        def needs(outcome: Outcome, examples: int | None = None, heads: int | None = None) -> Proposal:
            return Proposal(need=Need(outcome, examples, heads), moment=moment, evidence=evidence)

        if not moment.visible:
            needed = examples_needed(problem, signals, moment.values, moment.floor)
            return needs(Outcome.TOO_FEW_EXAMPLES, needed)
        crowd = min(calibration.WIDTHS[-1], signals.directions)
        if given is None and moment.visible > crowd and not signals.modelled:
            return needs(Outcome.TOKENS_DEGENERATE)
        counted = count_heads(problem, signals, moment, tools, given)
        evidence |= {"count": counted.evidence}
        if counted.crowded:
            least = int(np.ceil(calibration.MORE_LEAST * num))
            return needs(Outcome.TOO_FEW_EXAMPLES, max(least, counted.examples_needed))
        start = unmix(problem, signals, moment, counted, tools)
        evidence |= {"unmix": start.evidence}
        if start.unexplained > 1:
            return needs(Outcome.TOKENS_DEGENERATE)
        if start.swapped:
            return needs(Outcome.LOW_EFFECTIVE_RANK, heads=len(counted.coordinates))
        candidate = Candidate(start.weights, start.rank, self.name, clear_view=counted.clear_view)
        return Proposal(candidate, moment=moment, evidence=evidence)


@dataclass(frozen=True)
class EveryExample(FromMoment):
    """The moment again, of every example: a head much weaker than the others may be hidden in fewer."""

    name: str = "moment of every example"
    when: str = "the moment's fit is not exact, and the moment has not read every example"

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """After a fit of the moment's heads that is not exact."""
        if trail.moment is None or not trail.by(FromMoment.name):
            return "the moment has proposed no heads"
        return "the moment has read every example" if trail.moment.examples == len(signals.fit) else None

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The heads that every example shows, if they are others."""
        moment, evidence = take_moment(problem, signals, tools, every=True)
        found = self.heads(problem, signals, moment, evidence, tools)
        before, best = trail.by(FromMoment.name)[-1], trail.best
        if found.candidate is None or best is None:
            return Proposal(moment=moment, evidence=found.evidence)
        same = found.candidate.weights.heads == before.proposed_heads
        if same and not (best.verdict is Verdict.MISFIT and best.leaves_much(signals.misfit)):
            return Proposal(moment=moment, evidence=found.evidence | {"heads": "no more than before"})
        return found


@dataclass(frozen=True)
class SuggestedCount(Proposer):
    """A number of heads that the moment suggests without establishing it, judged by the fit alone.

    Where the weakest heads stand a tenth above the noise, the count cannot establish them, but the order of the singular values
    often tells: heads fall off in steps, and noise does not. Heads too many turn out idle; so where there is no step a usual
    number may do. Heads of rank one, which the moment shows twice, are fitted in the same way.
    """

    name: str = "suggested count"
    when: str = "the moment shows heads, but not how many, or not which"
    from_: ClassVar[tuple[Outcome, ...]] = (Outcome.TOO_FEW_EXAMPLES, Outcome.LOW_EFFECTIVE_RANK)

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """After a moment whose heads were not established."""
        need = trail.needs.get(FromMoment.name)
        if trail.moment is None or need is None or need.outcome not in self.from_:
            return "the moment has established its heads, or shows none"
        few = need.outcome is Outcome.TOO_FEW_EXAMPLES
        return "the number of heads is given" if few and problem.num_heads is not None else None

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The heads of that number, if the examples could determine them."""
        moment, need = trail.moment, trail.needs[FromMoment.name]
        assert moment is not None
        heads = need.heads or last_step(moment.values) or calibration.WIDTHS[0]
        counted = count_heads(problem, signals, moment, tools, heads)
        start: Heads = unmix(problem, signals, moment, counted, tools)
        evidence = {"heads": heads, "count": counted.evidence, "unmix": start.evidence}
        if start.unexplained > 1:
            return Proposal(evidence=evidence | {"dropped": "these heads explain nothing"})
        dim, out = problem.examples.dim, problem.examples.out_dim
        wanted = calibration.EQUATIONS_PER_UNKNOWN * unknowns(start.weights.heads, dim, out, start.rank)
        if problem.equations < wanted:
            return Proposal(evidence=evidence | {"dropped": "too few equations for so many heads"})
        return Proposal(Candidate(start.weights, start.rank, self.name, tentative=True), evidence=evidence)


def last_step(values: np.ndarray) -> int | None:
    """How many values come before the last fall that is larger than noise makes.

    >>> last_step(np.array([3.0, 2.0, 1.9, 1.1, 1.09, 1.08, 1.07, 1.06, 1.05, 1.04, 1.03]))
    3
    >>> last_step(np.linspace(1.2, 1.0, 20)) is None
    True
    """
    falls, after = values[:-1] / values[1:] - 1, calibration.VECTORS // 4
    for heads in range(len(falls) - after, 0, -1):
        usual = falls[heads : heads + after].max()
        if falls[heads - 1] > max(calibration.ALIKE, calibration.FAR_MORE * usual):
            return heads
    return None
