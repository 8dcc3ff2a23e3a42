"""A deadline is a value of the monotonic clock."""

from __future__ import annotations

import time

import pytest

from attnlearn.solve import _deadline
from attnlearn.solve._deadline import passed


def test_no_deadline_never_passes():
    assert not passed(None)


def test_the_clock_is_monotonic():
    assert _deadline.clock is time.monotonic
    assert passed(time.monotonic() - 1)
    assert not passed(time.monotonic() + 3600)


@pytest.mark.parametrize(("now", "late"), [(4.9, False), (5.0, True), (5.1, True)])
def test_a_deadline_passes_when_the_clock_reaches_it(now, late, monkeypatch):
    monkeypatch.setattr(_deadline, "clock", lambda: now)
    assert passed(5.0) == late
