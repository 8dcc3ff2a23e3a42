"""The driver: signals, each row of the table, a fit after every candidate; the next step follows from the trail alone."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn.engine import Checkpoint, Tools, run_phases
from attnlearn.recovery import _fit
from attnlearn.recovery._driver import FITTED, program
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._problem import Need
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._trail import Proposal, Trail

from ._problems import FEW, made_candidate, problem, tokens

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


def unfinished(monkeypatch) -> None:
    """Fits that find their time up at once, as if every step took too long."""
    whole_refine = _fit.refine

    def refine(*args, **options):
        found = whole_refine(*args, **options)
        return dataclasses.replace(found, stop="deadline")

    monkeypatch.setattr(_fit, "refine", refine)


def test_a_fit_whose_time_was_up_is_the_best_so_far_and_stays_pending(whole, monkeypatch):
    moved = TRUTH.replace(theta=1.2 * TRUTH.theta)
    table = [Fake("first", answers=(proposes(moved),)), Fake("second")]
    trail = run(whole, Fake("first")).state
    trail = dataclasses.replace(trail, row=1, pending=table[0].answers[0].candidate)
    name, step = program(table)(trail)
    assert name == "fit"
    with monkeypatch.context() as patch:
        unfinished(patch)
        stopped, evidence = step(whole, trail, Tools())
    assert evidence["verdict"] == "UNFINISHED"
    assert stopped.best.verdict is Verdict.UNFINISHED
    assert not stopped.settled
    assert np.array_equal(stopped.pending.weights.theta, stopped.best.weights.theta)
    name, step = program(table)(stopped)
    assert name == "fit"
    ended, _ = step(whole, stopped, Tools())
    assert [fit.verdict for fit in ended.fits] == [Verdict.EXACT]
    assert ended.pending is None


def test_a_run_out_of_time_is_resumed_where_it_was(whole, tmp_path):
    table = Fake("first", answers=(MISFIT,)), Fake("second", answers=(EXACT,)), Fake("third")
    straight = run(whole, *table)
    identity, records = {"data": "same"}, []
    for _ in range(len(straight.records)):
        with_clock = Tools(deadline=0.0)  # up after every phase
        saved = Checkpoint(tmp_path, identity, resume=True)
        found = run(whole, *table, tools=with_clock, checkpoint=saved)
        saved.close()
        records.append(len(found.records))
        assert found.out_of_time
    assert records == list(range(1, len(straight.records) + 1))
    assert named(found) == named(straight)
    assert found.state.best.weights.theta.tobytes() == straight.state.best.weights.theta.tobytes()
    assert [fit.verdict for fit in found.state.fits] == [fit.verdict for fit in straight.state.fits]
