"""C2 beside errors: true counts are established, heads too many or too few are not, and nothing is once the time is over."""

from __future__ import annotations

import time

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._certificate import Claim, Status
from attnlearn.solve.noise import _count as count
from attnlearn.solve.noise._setting import Setting
from attnlearn.solve.refinement import RefineConfig, refine

from ._problems import TRUTH, fitted, setting, status


def counted(at: Setting, fraction: float = 0.95, carried_by: float = 500.0, deadline: float | None = None):
    c1 = Claim("C1", "", True, {"examples": at.held.num, "fraction": fraction})
    return count.count_beside_errors(at, c1, carried_by, deadline)


def test_the_true_number_is_established_within_its_limits(rng):
    claim, checks, seen = counted(setting(*fitted(rng, fresh=200)))
    assert set(status(checks).values()) <= {Status.HOLDS, Status.NOT_APPLICABLE}
    assert claim.established
    assert claim.value == 2
    thresholds = {check.code: check.threshold for check in checks}
    assert claim.scope["visible"] == thresholds["C2.visible"]
    assert claim.scope["apart"] == thresholds["C2.apart"]
    assert count.LIKE_PLANTED in claim.assumes
    assert seen.rival is None


def test_an_idle_head_is_not_counted(rng):
    layer, used = fitted(rng, fresh=200)
    idle = AttentionLayer(
        np.concatenate([layer.theta, -layer.theta[:1]]), np.concatenate([layer.w, 0 * layer.w[:1]])
    )
    claim, checks, _ = counted(setting(idle, used))
    assert not claim.established
    assert status(checks)["C2.needed"] is Status.FAILS
    assert status(checks)["C2.visible"] is Status.FAILS


def test_one_head_in_the_place_of_two_is_not_the_count(rng):
    _, used = fitted(rng, fresh=200)
    one = AttentionLayer(TRUTH.theta.mean(axis=0)[None], TRUTH.w.sum(axis=0)[None])
    one = refine(one, used.x[:700], used.y[:700], config=RefineConfig(equations_per_unknown=np.inf)).layer
    claim, checks, _ = counted(setting(one, used))
    assert not claim.established
    assert status(checks)["C2.split"] is Status.FAILS


def test_inputs_that_were_not_looked_at_keep_it_open(rng):
    claim, checks, _ = counted(setting(*fitted(rng, fresh=200)), fraction=0.1)
    assert not claim.established
    assert [code for code, found in status(checks).items() if found is Status.FAILS] == ["C2.evidence"]


def test_errors_that_a_few_sequences_carry_keep_it_open(rng):
    claim, checks, _ = counted(setting(*fitted(rng, fresh=200)), carried_by=count.CARRIED_BY - 1)
    assert not claim.established
    assert [code for code, found in status(checks).items() if found is Status.FAILS] == ["C2.influence"]


def test_nothing_is_looked_at_once_the_time_is_over(rng):
    claim, checks, seen = counted(setting(*fitted(rng, fresh=200)), deadline=time.monotonic() - 1)
    assert not claim.established
    assert set(status(checks).values()) == {Status.NOT_RUN}
    assert seen.opinion is None


def test_rivals_may_differ_by_what_the_errors_hide(rng):
    quiet, loud = (setting(*fitted(rng, level=level, fresh=200)) for level in (1e-4, 1e-3))
    assert count._indistinct(loud, 1.0) == pytest.approx(10 * count._indistinct(quiet, 1.0), rel=0.2)
    assert count._indistinct(loud, 0.5) == pytest.approx(2 * count._indistinct(loud, 1.0))
    assert count._indistinct(loud, 0.0) < 1  # never so much that every layer is as good
