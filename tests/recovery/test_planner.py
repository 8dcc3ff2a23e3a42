"""The planner: a plan of the signals, and others where heads or errors change it by a factor of two."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, recover
from attnlearn.engine import Progress, Tools
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._plan import Size, make_plan
from attnlearn.recovery._planner import Planner, carries_errors, planned
from attnlearn.recovery._proposers import TABLES
from attnlearn.recovery._trail import Trail

from ._problems import made_candidate, made_fit, made_problem, made_signals


class Heard(Progress):
    """Keeps the time of every plan."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[str] = []

    def update(self, **figures) -> None:
        self.plans += [figures["time"]] if "memory" in figures else []


@pytest.fixture(autouse=True)
def at_one_speed(monkeypatch):
    monkeypatch.setattr("attnlearn.recovery._plan._speed", lambda: 1e7)


SEEN = Trail(signals=made_signals())
FOUND = dataclasses.replace(SEEN, pending=made_candidate(AttentionLayer.random(3, 5)))
NOISY = dataclasses.replace(SEEN, fits=(made_fit(Verdict.NOISE),))


@pytest.mark.parametrize(
    ("trail", "size"),
    [
        (SEEN, Size(4)),
        (dataclasses.replace(SEEN, signals=made_signals(rounded=True)), Size(4, errors=True)),
        (FOUND, Size(3, proposed=True)),
        (NOISY, Size(2, proposed=True, errors=True)),
    ],
)
def test_what_is_known_is_planned_for(trail, size):
    whole = made_problem()
    found = planned(TABLES["auto"], whole, trail, False)
    assert found == make_plan(whole.examples, len(whole.split.fit), size, False, None)
    assert carries_errors(trail) == (trail is NOISY)


@pytest.mark.parametrize(
    ("trails", "told"),
    [((Trail(),), 0), ((SEEN, SEEN), 1), ((SEEN, FOUND), 1), ((SEEN, NOISY), 2), ((SEEN, NOISY, NOISY), 2)],
)
def test_a_plan_is_told_again_where_it_is_off_by_a_factor_of_two(trails, told):
    whole, heard = made_problem(num=4_000), Heard()
    refusing = make_plan(whole.examples, 3_000, Size(8), False, "4GB")
    planner = Planner(TABLES["auto"], whole, False, refusing, Tools(progress=heard))
    for trail in trails:
        planner.look(trail)
    assert len(heard.plans) == told
    assert planner.plan.memory_limit == 4_000_000_000
    assert (planner.plan is refusing) == (told == 0)


def test_a_settled_run_is_not_planned_again(rng, seed):
    x = rng.standard_normal((600, 4, 6))
    heard = Heard()
    found = recover(x, AttentionLayer.random(2, 6, seed=seed)(x), progress=heard, raise_on_failure=False)
    assert 1 <= len(heard.plans) <= 2
    assert found.stats["plan"].figures()["time"] == heard.plans[-1]
    assert np.isfinite(found.stats["plan"].seconds_with_errors)
