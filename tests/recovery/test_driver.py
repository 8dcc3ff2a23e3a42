"""The driver: signals, each row of the table, a fit after every candidate; the next step follows from the trail alone."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn.engine import Checkpoint, Progress, Tools, run_phases
from attnlearn.recovery._driver import program
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._problem import Need
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._trail import Proposal, Trail

from ._problems import FEW, made_candidate, problem, tokens

FITTED = "the best fit leaves nothing to explain"
TRUTH = AttentionLayer.random(1, 4, seed=1, scale=2.0)
OTHER = AttentionLayer.random(1, 4, seed=2, scale=2.0)


@dataclasses.dataclass(frozen=True)
class Fake(Proposer):
    """A row that answers what it is told to, by how often it was asked before."""

    name: str = "fake"
    when: str = "told to"
    answers: tuple[Proposal, ...] = (Proposal(),)
    unsuited: str | None = None
    unwanted: str | None = None

    def suits(self, problem, signals):
        return self.unsuited

    def wanted(self, problem, signals, trail):
        return self.unwanted

    def propose(self, problem, signals, trail, tools):
        return self.answers[trail.asked.count(self.name)]


class Again(Fake):
    repeats: ClassVar[bool] = True


class Always(Fake):
    always: ClassVar[bool] = True


def proposes(layer: AttentionLayer, **changes) -> Proposal:
    return Proposal(made_candidate(layer, **changes), evidence={"heads": layer.num_heads})


MISFIT, EXACT = proposes(OTHER, refined=True), proposes(TRUTH, refined=True)


@pytest.fixture
def whole(rng):
    return problem(TRUTH, tokens(rng, "normal", 200, 3, 4))


def run(whole, *table, tools=None, checkpoint=None):
    return run_phases(program(table), whole, Trail(), Tools() if tools is None else tools, checkpoint)


def named(run) -> list[str]:
    return [record.name for record in run.records]


def test_a_fit_follows_a_candidate_and_later_rows_are_skipped_with_the_reason(whole):
    found = run(whole, Fake("first", answers=(EXACT,)), Fake("second"), Always("third"))
    assert named(found) == ["signals", "first", "fit", "second", "third"]
    evidence = {record.name: record.evidence for record in found.records}
    assert evidence["first"] == {"heads": 1}
    assert evidence["fit"]["verdict"] == "EXACT"
    assert evidence["second"] == {"skipped": FITTED}
    assert evidence["third"] == {}
    assert found.state.settled
    assert found.state.asked == ("first", "third")


def test_rows_go_on_after_a_misfit_and_the_best_fit_stays(whole):
    found = run(whole, Fake("first", answers=(MISFIT,)), Fake("second", answers=(EXACT,)))
    assert named(found) == ["signals", "first", "fit", "second", "fit"]
    assert [fit.verdict for fit in found.state.fits] == [Verdict.MISFIT, Verdict.EXACT]
    assert found.state.best is found.state.fits[1]


def test_rows_that_do_not_suit_or_are_not_wanted_say_why(whole):
    found = run(
        whole, Fake("first", unsuited="too wide", unwanted="never"), Fake("second", unwanted="not now")
    )
    assert [record.evidence for record in found.records[1:]] == [
        {"skipped": "too wide"},
        {"skipped": "not now"},
    ]
    assert found.state.asked == ()
    assert found.state.best is None


def test_a_need_is_kept_by_the_name_of_its_row(whole):
    found = run(whole, Fake("first", answers=(Proposal(need=FEW, evidence={"floor": 0.5}),)))
    assert found.state.needs == {"first": FEW}
    assert found.records[-1].evidence == {"floor": 0.5, "need": "TOO_FEW_EXAMPLES", "examples_needed": 900}


def test_a_row_that_repeats_is_asked_until_it_has_no_candidate(whole):
    found = run(whole, Again("again", answers=(MISFIT, MISFIT, Proposal())), Fake("last"))
    assert named(found) == ["signals", "again", "fit", "again", "fit", "again", "last"]


def test_a_row_that_repeats_ends_with_a_settled_fit(whole):
    found = run(whole, Again("again", answers=(MISFIT, EXACT)), Fake("last"))
    assert named(found) == ["signals", "again", "fit", "again", "fit", "again", "last"]
    assert [record.evidence.get("skipped") for record in found.records[-2:]] == [FITTED, FITTED]


def test_data_that_tell_nothing_end_the_run_before_the_first_row(rng):
    flat = problem(AttentionLayer.random(1, 4, scale=0.0), tokens(rng, "normal", 200, 3, 4))
    found = run(flat, Fake("first", answers=(EXACT,)))
    assert named(found) == ["signals"]
    assert isinstance(found.state.signals, Need)
    assert found.state.signals.outcome is Outcome.ATTENTION_TOO_WEAK
    assert program([Fake()])(found.state) is None


def test_the_next_step_follows_from_the_trail_alone(whole):
    following = program([Fake("first"), Fake("second")])
    assert following(Trail())[0] == "signals"
    measured = run(whole, Fake("first"), Fake("second")).state
    assert following(measured) is None
    assert following(dataclasses.replace(measured, row=1))[0] == "second"
    assert following(dataclasses.replace(measured, row=1, pending=made_candidate()))[0] == "fit"


def test_a_fit_whose_time_was_up_is_the_best_so_far_and_stays_pending(whole):
    moved = TRUTH.replace(theta=1.2 * TRUTH.theta)
    table = [Fake("first", answers=(proposes(moved),)), Fake("second")]
    trail = run(whole, Fake("first")).state
    trail = dataclasses.replace(trail, row=1, pending=table[0].answers[0].candidate)
    name, step = program(table)(trail)
    assert name == "fit"
    stopped, evidence = step(whole, trail, Tools(deadline=0.0))
    assert evidence["verdict"] == "UNFINISHED"
    assert stopped.best.verdict is Verdict.UNFINISHED
    assert not stopped.settled
    assert np.array_equal(stopped.pending.weights.layer.theta, stopped.best.weights.layer.theta)
    name, step = program(table)(stopped)
    assert name == "fit"
    ended, _ = step(whole, stopped, Tools())
    assert [fit.verdict for fit in ended.fits] == [Verdict.EXACT]
    assert ended.pending is None


def test_a_fit_that_is_exact_when_its_time_is_up_has_ended(whole):
    trail = dataclasses.replace(run(whole, Fake("first")).state, row=1, pending=EXACT.candidate)
    ended, evidence = program([Fake("first")])(trail)[1](whole, trail, Tools(deadline=0.0))
    assert evidence["verdict"] == "EXACT"
    assert ended.pending is None
    assert ended.settled


class Breaks(Tools):
    """Time that is up after every phase, and never inside one."""

    @property
    def out_of_time(self) -> bool:
        return not self.progress._phases


def test_a_run_out_of_time_is_resumed_where_it_was(whole, tmp_path):
    table = Fake("first", answers=(MISFIT,)), Fake("second", answers=(EXACT,)), Fake("third")
    straight = run(whole, *table)
    identity, records = {"data": "same"}, []
    for _ in range(len(straight.records)):
        saved = Checkpoint(tmp_path, identity, resume=True)
        found = run(whole, *table, tools=Breaks(), checkpoint=saved)
        saved.close()
        records.append(len(found.records))
        assert found.out_of_time == (
            len(records) < len(straight.records)
        )  # after the last phase nothing is left
    assert records == list(range(1, len(straight.records) + 1))
    assert named(found) == named(straight)
    assert found.state.best.weights.layer.theta.tobytes() == straight.state.best.weights.layer.theta.tobytes()
    assert [fit.verdict for fit in found.state.fits] == [fit.verdict for fit in straight.state.fits]


def test_a_fit_that_was_cut_is_taken_up_by_the_next_run_that_has_time(whole, tmp_path):
    moved = TRUTH.replace(theta=1.2 * TRUTH.theta)
    table = Fake("first", answers=(proposes(moved),)), Fake("second")
    for _ in range(3):  # signals, the row, and a fit without time
        with Checkpoint(tmp_path, {}, resume=True) as saved:
            cut = run(whole, *table, tools=Tools(deadline=0.0), checkpoint=saved)
    assert named(cut) == ["signals", "first", "fit"]
    assert cut.state.pending is not None
    with Checkpoint(tmp_path, {}, resume=True) as saved:
        found = run(whole, *table, checkpoint=saved)
    assert named(found) == ["signals", "first", "fit", "fit", "second"]
    assert [fit.verdict for fit in found.state.fits] == [Verdict.EXACT]
    assert found.state.pending is None


class Shown(Progress):
    """Keeps the names of the phases that were shown."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def _opened(self, phase) -> None:
        self.names.append(phase.name)


def test_rows_that_are_skipped_are_recorded_and_not_shown(whole):
    shown = Shown()
    table = (
        Fake("first", unsuited="too wide"),
        Fake("second", answers=(EXACT,)),
        Fake("third"),
        Always("last"),
    )
    found = run(whole, *table, tools=Tools(progress=shown))
    assert named(found) == ["signals", "first", "second", "fit", "third", "last"]
    assert shown.names == ["signals", "second", "fit", "last"]


def test_a_final_need_ends_the_table_with_its_cause(whole):
    final = Need(Outcome.NOT_ATTENTION, cause="residual", final=True)
    known = {"skipped": "the cause of the misfit is known: residual"}
    found = run(
        whole,
        Fake("first", answers=(Proposal(need=final),)),
        Fake("second", answers=(EXACT,)),
        Always("third"),
    )
    evidence = {record.name: record.evidence for record in found.records}
    assert named(found) == ["signals", "first", "second", "third"]
    assert evidence["first"] == {"need": "NOT_ATTENTION", "examples_needed": None}
    assert evidence["second"] == known
    assert evidence["third"] == {}
    assert found.state.best is None
