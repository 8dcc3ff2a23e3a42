"""The split: three sides that share nothing, fixed by the seed, with whole groups."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.solve import _calibration as calibration
from attnlearn.solve._split import Split, sequences_in_all


@pytest.mark.parametrize("num", [20, 101, 30_000])
def test_the_sides_share_nothing_and_leave_nothing(num, seed):
    sides = Split.make(num, seed=seed)
    every = np.concatenate([sides.fit, sides.select, sides.certify])
    assert np.array_equal(np.sort(every), np.arange(num))
    assert len(sides.certify) == min(calibration.SIDE_MOST, round(calibration.CERTIFY_FRACTION * num))
    assert len(sides.select) == min(calibration.SIDE_MOST, round(calibration.SELECT_FRACTION * num))


def test_the_seed_decides(seed):
    first, again, other = (Split.make(100, seed=s) for s in (seed, seed, seed + 1))
    assert np.array_equal(first.certify, again.certify)
    assert not np.array_equal(first.certify, other.certify)


def test_groups_stay_together(seed):
    groups = np.repeat(np.arange(30), 3)
    sides = Split.make(90, groups=groups, seed=seed)
    named = [set(groups[side]) for side in (sides.fit, sides.select, sides.certify)]
    assert not named[0] & named[1] | named[0] & named[2] | named[1] & named[2]


@pytest.mark.parametrize(("num", "groups", "message"), [
    (19, None, "x: must hold at least 20 sequences, got 19"),
    (40, np.arange(40) // 4, "groups: must hold at least 20 groups, got 10"),
    (40, np.arange(39), r"groups: must have one entry per sequence, shape \(40,\)"),
])  # fmt: skip
def test_too_few_are_named(num, groups, message):
    with pytest.raises(ValueError, match=message):
        Split.make(num, groups=groups)


def test_sequences_in_all_invert_the_split() -> None:
    for num in (400, 4000, 13_000, 60_000):
        assert sequences_in_all(len(Split.make(num).fit)) == pytest.approx(num, rel=0.12)
