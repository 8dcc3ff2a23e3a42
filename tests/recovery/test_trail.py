"""The trail: which fit is the best one, and what a proposer's answer adds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn.engine._encode import decode, encode
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._problem import Need
from attnlearn.recovery._trail import UNKNOWN, Proposal, Trail, replaces

from ._problems import FEW, MISFITS, made_candidate, made_fit, made_moment, made_signals

EXACT, ON_TARGET, NOISE, MISFIT = Verdict.EXACT, Verdict.ON_TARGET, Verdict.NOISE, Verdict.MISFIT
MEMORISED, UNFINISHED = Verdict.MEMORISED, Verdict.UNFINISHED


@pytest.mark.parametrize(
    ("later", "best", "expected"),
    [
        ((MISFIT, 0.1), None, True),  # anything is better than nothing
        ((MEMORISED, 0.5), None, True),
        (
            (MISFIT, 0.1, "tentative"),
            None,
            False,
        ),  # a number of heads that was only tried must explain the outputs
        ((NOISE, 0.01, "tentative"), None, True),
        ((EXACT, 1e-15, "tentative"), None, True),
        ((MISFIT, 0.09), (MISFIT, 0.1), True),  # a smaller error
        ((MISFIT, 0.11), (MISFIT, 0.1), False),
        ((NOISE, 0.02, "tentative"), (MISFIT, 0.1), True),
        ((NOISE, 0.02, "tentative"), (MISFIT, 0.022), False),  # not much smaller
        ((NOISE, 0.02), (MISFIT, 0.022), True),
        ((MISFIT, 0.05, "tentative"), (MISFIT, 0.1), False),
        ((EXACT, 1e-3), (NOISE, 1e-4), True),  # settled wins over any error
        ((NOISE, 1e-16), (EXACT, 1e-15), False),
        ((EXACT, 1e-16), (EXACT, 1e-15), False),  # the first settled fit stays
        ((ON_TARGET, 1e-3, "tentative"), (MEMORISED, 0.1), True),
        ((EXACT, 1e-16), (ON_TARGET, 1e-3), False),
        ((UNFINISHED, 0.05), (MISFIT, 0.1), True),
    ],
)
def test_a_later_fit_replaces_the_best_one(later, best, expected):
    def fit(verdict, error, *tentative):
        return made_fit(verdict, error, tentative=bool(tentative))

    assert replaces(fit(*later), None if best is None else fit(*best)) is expected


def test_the_best_fit_is_the_last_that_replaced_another():
    fits = (
        made_fit(MISFIT, 0.1),
        made_fit(MISFIT, 0.05, by="wide search"),
        made_fit(MISFIT, 0.2, by="one more head"),
    )
    trail = Trail(fits=fits)
    assert trail.best is fits[1]
    assert trail.best_without("wide search") is fits[0]
    assert trail.by("one more head") == [fits[2]]
    assert not trail.settled
    assert dataclasses.replace(trail, fits=(*fits, made_fit(EXACT, 1e-15))).settled
    assert dataclasses.replace(trail, fits=(*fits, made_fit(ON_TARGET, 1e-3))).settled


def test_a_trail_without_fits_has_no_best_one():
    assert Trail().best is None
    assert not Trail().settled
    assert Trail().cause() is None


def test_the_cause_is_that_of_the_need_that_names_one():
    named = dataclasses.replace(MISFITS, cause="residual")
    unknown = dataclasses.replace(MISFITS, cause=UNKNOWN)
    assert Trail(needs={"moment": FEW, "wide search": MISFITS}).cause() is None
    assert Trail(needs={"wide search": MISFITS, "cause of the misfit": named}).cause() == "residual"
    assert Trail(needs={"cause of the misfit": unknown}).cause() == UNKNOWN


def test_a_trail_is_closed_by_a_settled_fit_or_a_final_need():
    cause = dataclasses.replace(MISFITS, cause="residual")
    final = dataclasses.replace(cause, final=True)
    fitted = "the best fit leaves nothing to explain"
    assert Trail().closed is None
    assert Trail(fits=(made_fit(MISFIT, 0.1),), needs={"cause of the misfit": cause}).closed is None
    assert Trail(needs={"residual connection": final}).closed == "the cause of the misfit is known: residual"
    assert Trail(fits=(made_fit(EXACT, 1e-15),)).closed == fitted
    assert Trail(fits=(made_fit(ON_TARGET, 1e-3),), needs={"residual connection": final}).closed == fitted


def test_an_answer_is_added_and_the_next_row_comes_next():
    candidate, moment = made_candidate(), made_moment(np.ones(3))
    before = Trail(signals=made_signals(), needs={"wide search": FEW}, asked=("wide search",), row=1)
    after = before.after("moment", Proposal(candidate, moment=moment), again=False)
    assert (after.row, after.pending, after.moment) == (2, candidate, moment)
    assert after.asked == ("wide search", "moment")
    assert after.needs == {"wide search": FEW}
    need = Need(FEW.outcome, 100)
    later = after.after("one more head", Proposal(need=need), again=True)
    assert (later.row, later.pending, later.moment) == (2, None, moment)
    assert later.needs == {"wide search": FEW, "one more head": need}


def test_a_trail_comes_back_from_a_checkpoint_as_it_was():
    trail = Trail(
        signals=made_signals(),
        row=3,
        pending=made_candidate(tentative=True),
        fits=(made_fit(MISFIT, 0.1),),
        asked=("moment",),
        needs={"moment": FEW, "residual connection": dataclasses.replace(MISFITS, final=True)},
        moment=made_moment(np.array([2.0, 1.0])),
    )
    fields = {field.name: getattr(trail, field.name) for field in dataclasses.fields(trail)}
    back = Trail(**decode(*encode(fields)))
    assert (back.row, back.asked, back.needs) == (3, ("moment",), trail.needs)
    assert back.needs["residual connection"].final
    assert back.best.verdict is MISFIT
    assert back.pending.tentative
    assert np.array_equal(back.moment.values, trail.moment.values)
    assert back.signals.evidence() == trail.signals.evidence()
