"""Sculpting as rows of a table, in the order of the theorem.

crude sum   a first S, by regression on rows that look at one token                          (phase 1)
carve       recognise agreeing rows, cut the body, take its minimum-norm point, refine S,
            with a smaller tolerance every round                                             (phases 2 to 5)
span        the affine hull of the heads, and their number                                   (phase 6)
search      which points of the hull are the heads; W_i by least squares                     (phase 7)
fit         Gauss-Newton on everything                                                       (phase 8)
condition   which condition of the theorem the layer breaks, where the fit is not exact
recheck     every kept slab again, with the true singular values

`SculptConfig(faithful=...)` puts the paper's own steps into the rows of crude sum, span and search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attnlearn._errors import AttnlearnError
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome
from attnlearn.engine import Stop, Tools
from attnlearn.recovery import _problem as shared
from attnlearn.recovery._calibration import TARGET_MARGIN
from attnlearn.recovery._of_search import MisfitCause
from attnlearn.recovery._problem import Candidate, Need, Weights
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import Proposal, Trail
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._carve import carve
from attnlearn.recovery.sculpt._config import SculptConfig
from attnlearn.recovery.sculpt._diagnose import broken_condition, fitting_layer
from attnlearn.recovery.sculpt._paper_search import every_tuple
from attnlearn.recovery.sculpt._paper_span import queried_span
from attnlearn.recovery.sculpt._paper_sum import correlation_sum
from attnlearn.recovery.sculpt._recheck import recheck
from attnlearn.recovery.sculpt._search import search
from attnlearn.recovery.sculpt._source import FitSide, OnDemand
from attnlearn.recovery.sculpt._span import may_have_more, span, with_one_more
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.recovery.sculpt._sum import crude_sum

PhaseFunction = Callable[[Problem, State, Tools], tuple[State, dict[str, Any]]]


@dataclass(frozen=True)
class Seen:
    """How sculpting sees a problem: with its configuration, and with a source of more examples if they are drawn."""

    config: SculptConfig
    drawn: tuple[Any, Any, int] | None

    def problem(self, problem: shared.Problem, signals: Signals) -> Problem:
        """The problem of the phases."""
        examples, split, config = problem.examples, problem.split, self.config
        more = config.num_examples - min(config.held_examples, config.num_examples)
        if self.drawn is None or more == 0:
            source = FitSide(examples, split.fit, config.batch)
        else:
            source = OnDemand(*self.drawn, batch=config.batch, num=more)
        return Problem(examples, split, source, config, signals.causal, problem.num_heads, problem.target)


@dataclass(frozen=True)
class SculptPhase(Proposer):
    """One phase of the theorem; the last one, or one that reaches the target, gives the candidate."""

    seen: Seen | None = None
    run: PhaseFunction | None = None
    last: bool = False

    def wanted(self, problem: shared.Problem, signals: Signals, trail: Trail) -> str | None:
        """Unless a phase before it failed, or reached the target."""
        if trail.needs:
            return f"{next(iter(trail.needs))} could not be completed"
        return "the target is reached" if trail.body is not None and trail.body.reached else None

    def propose(self, problem: shared.Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The next state of the body, and the heads once they are found."""
        assert self.seen is not None
        assert self.run is not None
        before = State() if trail.body is None else trail.body
        try:
            state, info = self.run(self.seen.problem(problem, signals), before, tools)
        except Stop as stop:  # the phases end this way; nothing else is tried for it
            kept = before if stop.state is None else stop.state
            examples = stop.evidence.get("examples_needed")
            need = Need(Outcome[stop.outcome_name], examples, evidence=stop.evidence)
            return Proposal(need=need, body=kept, evidence=stop.evidence)
        if not (self.last or state.reached):
            return Proposal(body=state, evidence=info)
        arrays = state.theta, state.w, state.query_bias, state.output_bias
        weights = Weights.of(AttentionLayer(*arrays, causal=bool(state.causal)))
        done = state.reached or not self.seen.config.refine
        candidate = Candidate(weights, None, self.name, tentative=not done, refined=done)
        return Proposal(candidate, body=state, evidence=info)


@dataclass(frozen=True)
class BrokenCondition(Proposer):
    """Which condition of the theorem the layer breaks: measured on a layer that fits, if random starts find one."""

    seen: Seen | None = None

    def wanted(self, problem: shared.Problem, signals: Signals, trail: Trail) -> str | None:
        """After a fit of the found heads that leaves structure."""
        return None if trail.fits and trail.best is None else "the heads that were found explain the outputs"

    def propose(self, problem: shared.Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """What the layer that fits says of the conditions."""
        assert self.seen is not None
        inner, state = self.seen.problem(problem, signals), trail.body
        layer = fitting_layer(inner, state, tools)
        if layer is None:
            return Proposal(need=Need(Outcome.NOT_ATTENTION))
        broken = broken_condition(inner, state, layer)
        if broken is not None:
            return Proposal(
                need=Need(Outcome[broken.outcome], evidence=broken.evidence), evidence=broken.evidence
            )
        more = int(calibration.READ_GROWTH * state.examples_read)
        return Proposal(need=Need(Outcome.TOO_FEW_EXAMPLES, more))


@dataclass(frozen=True)
class Recheck(Proposer):
    """Every kept slab again, with the true singular values; it proposes nothing."""

    seen: Seen | None = None
    always: ClassVar[bool] = True

    def wanted(self, problem: shared.Problem, signals: Signals, trail: Trail) -> str | None:
        """Once there is an answer."""
        return "there is no answer" if trail.best is None else None

    def propose(self, problem: shared.Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The body with the number of slabs that miss a head."""
        assert self.seen is not None
        assert trail.best is not None
        state, info = recheck(self.seen.problem(problem, signals), trail.body, trail.best.layer)
        return Proposal(body=state, evidence=info)


def sculpt_table(config: SculptConfig, drawn: tuple[Any, Any, int] | None) -> tuple[Proposer, ...]:
    """The rows in order.

    >>> [row.name for row in sculpt_table(SculptConfig(), None)]
    ['crude sum', 'carve', 'span', 'search', 'broken condition', 'cause of the misfit', 'recheck']
    """
    seen = Seen(config, drawn)
    carved = partial(carve, attempt=attempt_target)
    return (
        SculptPhase("crude sum", "always", seen, first_sum(config)),
        SculptPhase("carve", "a first sum was found", seen, carved),
        SculptPhase("span", "a body was carved", seen, hull_of(config)),
        SculptPhase("search", "the hull of the heads is known", seen, judged_search, last=True),
        BrokenCondition("broken condition", "the heads that were found do not explain the outputs", seen),
        MisfitCause(),
        Recheck("recheck", "there is an answer", seen),
    )


def first_sum(config: SculptConfig) -> PhaseFunction:
    """How the first sum is found: from rows of one token, or by the paper's correlation."""
    return correlation_sum if config.as_paper("sum") else crude_sum


def hull_of(config: SculptConfig) -> PhaseFunction:
    """How the hull of the heads is found: by null vectors of the slabs, or by membership queries as in the paper."""
    return queried_span if config.as_paper("span") else span


def judged_search(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """Search among the heads that the slabs show, and among one more as long as that explains select examples better.

    Notes whether the answer reaches the target on the select side, and the evidence of the wider hull.
    """
    look = every_tuple if problem.config.as_paper("search") else search
    state, info = look(problem, state, tools)
    tried = {state.num_heads: info["select_error"]}
    while info["select_error"] > calibration.UNEXPLAINED and may_have_more(problem, state):
        wider, hull = span(with_one_more(problem, state), state, tools)
        wider, found = search(problem, wider, tools)
        tried[wider.num_heads] = found["select_error"]
        if found["select_error"] > calibration.ONE_MORE_PAYS * info["select_error"]:
            break
        found["span"] = hull
        state, info = wider, found
    info["tried"] = {str(heads): error for heads, error in tried.items()}
    if problem.target is not None:
        reached = info["select_worst"] <= TARGET_MARGIN * problem.target
        state = dataclasses.replace(state, reached=bool(reached))
    return state, info


def attempt_target(problem: Problem, state: State, tools: Tools) -> State | None:
    """After a round: the answer so far, if it already reaches the target."""
    if problem.target is None:
        return None
    try:
        state, _ = hull_of(problem.config)(problem, state, tools)
        state, _ = judged_search(problem, state, tools)
    except (Stop, AttnlearnError):
        return None
    return state if state.reached else None
