"""Rows that look for heads by regression: the wide search (`wide/`), one more head (`_growth`), and causes of failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnlearn._result import Outcome
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._growth import growth, shows_a_head, with_random_head
from attnlearn.recovery._of_moment import FromMoment
from attnlearn.recovery._problem import Candidate, Need, Problem, Weights, examples_for
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._signals import Signals, measure
from attnlearn.recovery._trail import UNKNOWN, Proposal, Trail
from attnlearn.recovery.wide import search
from attnlearn.solve._calibration import LOOK_MOST
from attnlearn.solve._diagnose import Cause, Diagnosis, diagnose
from attnlearn.solve._heads import head_separation
from attnlearn.solve._split import Split
from attnlearn.solve._unknowns import unknowns
from attnlearn.solve.noise import unrelated


@dataclass(frozen=True)
class ResidualConnection(Proposer):
    """A residual connection left in: the wide search explains y - x, where the own token enters y about as itself.

    It proposes nothing. A skip is the limit of a head that attends to its own token, so fits of y itself hardly progress on words.
    """

    name: str = "residual connection"
    when: str = "the own token enters the outputs about as itself"

    def suits(self, problem: Problem, signals: Signals) -> str | None:
        """On tokens that the moment does not model; elsewhere the cause of a misfit is found in no time."""
        if not signals.residual:
            return "the own token does not enter the outputs as itself"
        if signals.modelled:
            return "the moment models these tokens"
        return _too_many(signals.directions, calibration.WIDE_FIRST)

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The cause, if y - x is an attention layer to five digits."""
        sides = [problem.fit_side(calibration.LEAST_ROWS), problem.select_side()]
        x, rest = (
            np.concatenate(parts)
            for parts in zip(*((side.x, side.y - side.x) for side in sides), strict=True)
        )
        fit = np.arange(sides[0].num)
        split = Split(fit, np.arange(len(fit), len(x)), fit[:0])
        without = Problem(as_examples(x, rest), split, signals.causal, problem.num_heads)
        measured = measure(without, tools)
        if isinstance(measured, Need):
            return Proposal()
        found = search(without, measured, tools)
        evidence = {"starts": found.tried}
        close = calibration.NEGLIGIBLE * calibration.ROUGH
        if found.best is None or found.best.select_error > close:
            return Proposal(evidence=evidence)
        said = Diagnosis(
            (
                Cause(
                    "residual", 1.0, "the outputs less their tokens are an attention layer: subtract x from y"
                ),
            )
        )
        need = Need(
            Outcome.NOT_ATTENTION, cause="residual", final=True, evidence={"diagnosis": said.to_json()}
        )
        return Proposal(need=need, evidence=evidence)


@dataclass(frozen=True)
class WideSearch(Proposer):
    """More heads than the layer has, from random scores (`wide`)."""

    name: str = "wide search"
    when: str = "the moment does not model these tokens"

    def suits(self, problem: Problem, signals: Signals) -> str | None:
        """On tokens that the moment does not model."""
        if signals.modelled:
            return "the moment models these tokens"
        return _too_many(signals.directions, calibration.WIDE_MOST)

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The best start without its needless heads."""
        before = None if trail.best is None else trail.best.select_error
        found = search(problem, signals, tools, before)
        evidence = {"starts": found.tried}
        if found.best is not None:
            weights = Weights.of(found.best.layer.astype(problem.examples.dtype))
            candidate = Candidate(weights, found.best.rank, self.name, at_optimum=signals.many)
            return Proposal(candidate, evidence=evidence)
        if found.misfits and not signals.modelled:  # else many more heads than layers have may be the cause
            return Proposal(need=Need(Outcome.NOT_ATTENTION), evidence=evidence)
        reached = max((entry["heads"] for entry in found.tried), default=0)
        wanted = (
            min(2 * (reached + 1), calibration.WIDTHS[0]) if problem.num_heads is None else problem.num_heads
        )
        unknown = unknowns(wanted, signals.directions, problem.examples.out_dim)
        enough = examples_for(unknown, problem.examples.tokens * problem.examples.out_dim)
        more = enough if enough > problem.examples.num else None
        return Proposal(need=Need(Outcome.TOO_FEW_EXAMPLES, more), evidence=evidence)


@dataclass(frozen=True)
class WideSearchLater(WideSearch):
    """The wide search after a moment that failed."""

    name: str = "wide search after the moment"
    when: str = "nothing explains the outputs, and no known cause is in the way"

    def suits(self, problem: Problem, signals: Signals) -> str | None:
        """Also in more directions, and on tokens that the moment models."""
        most = calibration.WIDE_FIRST if signals.modelled else calibration.WIDE_MOST
        return _too_many(signals.directions, most)

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """Where the moment has no answer, or one that leaves a misfit without a known cause."""
        if WideSearch.name in trail.asked:
            return "the wide search was made"
        if trail.cause() not in (None, UNKNOWN):
            return f"the cause of the misfit is known: {trail.cause()}"
        best, need = trail.best, trail.needs.get(FromMoment.name)
        if best is not None and not best.tentative:
            if best.verdict is Verdict.MEMORISED and signals.modelled and not signals.scarce:
                return "the moment's heads memorised the fit side, and more heads would too"
            if best.verdict is Verdict.MISFIT and not best.leaves_much(signals.misfit):
                return "the moment's heads leave too little for further ones"
            return "the moment's heads explain the outputs" if best.verdict.explains else None
        few = signals.modelled and need is not None and need.outcome is Outcome.TOO_FEW_EXAMPLES
        return "the moment would show heads in so many examples" if few and not signals.scarce else None


@dataclass(frozen=True)
class MisfitCause(Proposer):
    """Why no attention layer explains the outputs, if a known cause does. It proposes nothing."""

    name: str = "cause of the misfit"
    when: str = "the best fit leaves structure"

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """After a misfit, or when not even the widest search fits its own examples."""
        best = trail.best
        misfits = any(need.outcome is Outcome.NOT_ATTENTION for need in trail.needs.values())
        if best is None:
            return None if misfits else "there is no fit"
        return "the best fit explains the outputs" if best.verdict.explains else None

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The likeliest cause."""
        sample = problem.fit_side(LOOK_MOST)
        found = diagnose(sample.x, sample.y, sample.mask, signals.causal)
        said = {"diagnosis": found.to_json()}
        return Proposal(need=Need(Outcome.NOT_ATTENTION, cause=found.cause, evidence=said), evidence=said)


@dataclass(frozen=True)
class OneMoreHead(Proposer):
    """The best fit with one more head of random scores (`_growth`); asked again as long as that helps."""

    name: str = "one more head"
    when: str = "what the best fit leaves may be a head"
    repeats: ClassVar[bool] = True

    def suits(self, problem: Problem, signals: Signals) -> str | None:
        """Unless the number of heads is given, or the tokens vary in too many directions."""
        if problem.num_heads is not None:
            return "the number of heads is given"
        return _too_many(signals.directions, calibration.GROWN_MOST)

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """While the error falls, the examples can determine another head, and nothing else explains the misfit."""
        origin = trail.best_without(self.name)
        if origin is None:
            return "there is no fit to add a head to"
        if not origin.layer.plain_scores:
            return "the best fit has scores with positions"
        if origin.select_error < calibration.NOTICEABLE:
            return "so small an error is a matter of conditioning"
        if trail.cause() not in (None, UNKNOWN):
            return f"the cause of the misfit is known: {trail.cause()}"
        now = growth(origin, trail.by(self.name))
        if now.over is not None:
            return now.over
        heads = now.found.weights.heads
        if heads >= calibration.WIDTHS[1]:
            return f"{heads} heads are as many as are looked for one by one"
        examples = problem.examples
        wanted = unknowns(heads + 1, examples.dim, examples.out_dim)
        if problem.equations < calibration.EQUATIONS_PER_UNKNOWN * wanted:
            return "the examples could not determine another head"
        near = trail.by(self.name) and head_separation(now.found.layer) < calibration.NEAR_HEADS
        return "two heads nearly coincide, and another would come as close" if near else None

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The layer with a further head."""
        origin = trail.best_without(self.name)
        assert origin is not None
        now = growth(origin, trail.by(self.name))
        much = now.found.leaves_much(signals.misfit)
        if not much and not shows_a_head(problem, signals, now.found, tools):
            return Proposal(evidence={"residual": "shows no head"})
        heads = now.found.weights.heads + 1
        rng = tools.rng(f"grow {heads} {now.start}")
        layer = with_random_head(signals, now.found, rng)
        candidate = Candidate(Weights.of(layer), None, self.name, tentative=True)
        return Proposal(candidate, evidence={"heads": heads, "start": now.start})


@dataclass(frozen=True)
class UnrelatedOutputs(Proposer):
    """Whether the outputs have anything to do with the tokens. It proposes nothing."""

    name: str = "unrelated outputs"
    when: str = "no layer was found"

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """When there is no fit."""
        return None if trail.best is None else "a layer was fitted"

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The cause, if nothing in the outputs follows the tokens."""
        found = unrelated(problem.fit_side(LOOK_MOST), signals.causal)
        if found is None:
            return Proposal(evidence={"outputs": "follow the tokens, or are too few to tell"})
        said = {"diagnosis": Diagnosis((found,)).to_json()}
        return Proposal(need=Need(Outcome.NOT_ATTENTION, cause=found.name, evidence=said), evidence=said)


def _too_many(directions: int, most: int) -> str | None:
    return None if directions <= most else f"the tokens vary in {directions} directions, more than {most}"
