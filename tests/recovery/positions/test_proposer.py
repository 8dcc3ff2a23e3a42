"""The row for scores with positions: when it is wanted, and which families it tries in which order."""

from __future__ import annotations

import pytest

from attnlearn._result import Outcome
from attnlearn.recovery._problem import Need
from attnlearn.recovery._trail import Trail
from attnlearn.recovery.positions import WithPositions, asked_for
from attnlearn.scores import Offsets, Rotation, Visible
from attnlearn.solve._by_offset import Footprints
from tests.recovery._problems import made_fit, made_problem, made_signals

TURNED, ADDED = Footprints(0.0, 0.4, None), Footprints(0.4, 0.1, None)


def families(positions, shown, **known):
    row = WithPositions(asked=asked_for(positions))
    return row.families(made_problem(dim=8, **known), made_signals(8, causal=True), shown)


def kinds(found):
    return [type(family.kinds[0]) for family in found]


@pytest.mark.parametrize(
    ("cause", "wanted"), [("position", True), ("window", True), ("noise", False), (None, False)]
)
def test_it_runs_where_the_cause_is_one_that_positions_mend(cause, wanted):
    needs = {} if cause is None else {"cause of the misfit": Need(Outcome.NOT_ATTENTION, cause=cause)}
    trail = Trail(signals=made_signals(), needs=needs, fits=(made_fit(),))
    assert (WithPositions().wanted(made_problem(), made_signals(), trail) is None) is wanted
    assert WithPositions(asked=asked_for("rotary")).wanted(made_problem(), made_signals(), trail) is None


def test_what_a_residual_shows_counts_as_well():
    trail = Trail(signals=made_signals(), fits=(made_fit(structure="distance"),))
    assert WithPositions().wanted(made_problem(), made_signals(), trail) is None


def test_the_likelier_kind_comes_first():
    assert kinds(families(None, TURNED)) == [Rotation, Rotation, Offsets]
    assert kinds(families(None, ADDED)) == [Offsets, Rotation, Rotation]
    assert [family.kinds[0].width for family in families(None, TURNED)[:2]] == [4, 8]


def test_what_is_named_is_all_that_is_tried():
    given = Rotation((1.0, 0.2))
    assert [family.kinds for family in families(given, ADDED)] == [(given,)]
    assert kinds(families("relative", TURNED)) == [Offsets]
    assert kinds(families("rotary", ADDED)) == [Rotation, Rotation]
    assert families("rotary", ADDED, num_heads=1)[0].kinds[0].width == 8


def test_a_window_is_taken_from_the_signals_unless_a_mask_is_given():
    near = Footprints(0.0, 0.4, 3)
    found = families(None, near)
    assert {family.visible for family in found} == {Visible(True, 3)}
    assert found[0].kinds == (None,)
    assert families(None, near, causal=False)[0].visible == Visible(False, 3)
    assert {family.visible for family in families(None, near, causal=Visible(True))} == {Visible(True)}
