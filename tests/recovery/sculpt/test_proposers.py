"""Sculpting as rows of a table: phases hand on the body, end in a need, and give the candidate at the end."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn.engine import Stop, Tools
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._trail import Trail
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.recovery.sculpt._proposers import BrokenCondition, Recheck, SculptPhase, Seen, sculpt_table
from attnlearn.recovery.sculpt._recheck import body_check
from attnlearn.recovery.sculpt._source import FitSide, OnDemand
from attnlearn.recovery.sculpt._state import State
from tests.recovery._problems import FEW, made_fit, made_problem, made_signals

TRUTH = AttentionLayer.random(2, 5)
SEEN = Seen(SculptConfig(), None)


def phase(run, *, last: bool = False, config: SculptConfig | None = None) -> SculptPhase:
    return SculptPhase("a phase", "always", Seen(config or SculptConfig(), None), run, last)


def asked(row, trail: Trail | None = None):
    return row.propose(made_problem(), made_signals(), Trail() if trail is None else trail, Tools())


def with_answer(state: State, **changes) -> State:
    return dataclasses.replace(state, causal=False, **TRUTH.parameters._asdict(), **changes)


def test_a_phase_hands_on_the_body():
    def carve(problem, state, tools):
        return dataclasses.replace(state, batches_read=state.batches_read + 1), {"rounds": 3}

    first = asked(phase(carve))
    assert (first.candidate, first.need, first.evidence) == (None, None, {"rounds": 3})
    second = asked(phase(carve), Trail(body=first.body))
    assert second.body.batches_read == 2


@pytest.mark.parametrize(
    ("refine", "reached", "done"), [(True, False, False), (False, False, True), (True, True, True)]
)
def test_the_last_phase_gives_the_candidate_and_says_whether_it_is_done(refine, reached, done):
    def search(problem, state, tools):
        return with_answer(state, reached=reached), {"heads": 2}

    found = asked(phase(search, last=True, config=SculptConfig(refine=refine)))
    assert np.array_equal(found.candidate.weights.layer.theta, TRUTH.theta)
    assert found.candidate.refined is done
    assert found.candidate.tentative is not done
    early = asked(phase(search))
    assert (early.candidate is not None) is reached  # a target that is reached ends it early


@pytest.mark.parametrize("left", [None, State(batches_read=7)])
def test_a_phase_that_stops_says_what_it_needs_and_keeps_the_body(left):
    def stopped(problem, state, tools):
        raise Stop("TOO_FEW_EXAMPLES", {"examples_needed": 900}, left)

    before = State(batches_read=3)
    found = asked(phase(stopped), Trail(body=before))
    assert found.candidate is None
    assert found.need.outcome is Outcome.TOO_FEW_EXAMPLES
    assert found.need.examples == 900
    assert found.body is (before if left is None else left)


def test_phases_after_a_need_or_a_target_are_not_wanted():
    row = phase(None)

    def wanted(**trail):
        return row.wanted(made_problem(), made_signals(), Trail(**trail))

    assert wanted() is None
    assert wanted(body=State()) is None
    assert wanted(needs={"carve": FEW}) == "carve could not be completed"
    assert wanted(body=State(reached=True)) == "the target is reached"


def test_a_condition_is_looked_for_after_heads_that_do_not_explain_the_outputs():
    row = BrokenCondition("broken condition", "", SEEN)
    misfit = made_fit(Verdict.MISFIT, tentative=True)
    exact = made_fit(Verdict.EXACT, 1e-15, tentative=True)
    assert row.wanted(made_problem(), made_signals(), Trail(fits=(misfit,))) is None
    for trail in (Trail(), Trail(fits=(exact,))):
        assert isinstance(row.wanted(made_problem(), made_signals(), trail), str)


def test_slabs_are_checked_again_once_there_is_an_answer_and_after_an_exact_one():
    row = Recheck("recheck", "", SEEN)
    assert row.always
    assert row.wanted(made_problem(), made_signals(), Trail()) == "there is no answer"
    assert row.wanted(made_problem(), made_signals(), Trail(fits=(made_fit(Verdict.EXACT),))) is None


def test_the_table_has_a_row_for_each_phase_of_the_theorem():
    names = [row.name for row in sculpt_table(SculptConfig(), None)]
    assert names[:4] == ["crude sum", "carve", "span", "search"]
    assert names[-1] == "recheck"


def test_more_examples_come_from_where_they_were_drawn():
    config = SculptConfig(num_examples=9_000, held_examples=1_000)
    whole, found = made_problem(num=1_000, target=0.1, num_heads=2), made_signals(causal=True)
    held = Seen(config, None).problem(whole, found)
    drawn = Seen(config, ("model", "oracle", 3)).problem(whole, found)
    assert isinstance(held.source, FitSide)
    assert isinstance(drawn.source, OnDemand)
    assert (drawn.causal, drawn.num_heads, drawn.target) == (True, 2, 0.1)


@pytest.mark.parametrize(("violated", "status"), [(None, "NOT_RUN"), (0.0, "HOLDS"), (2.0, "FAILS")])
def test_the_check_of_the_body(violated, status):
    assert body_check(State(slabs_violated=violated)).status.name == status
