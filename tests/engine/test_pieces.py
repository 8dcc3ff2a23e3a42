"""Pieces: derived when needed, kept or not, and added in order."""

from __future__ import annotations

import operator

import numpy as np

from attnlearn.engine import _calibration as calibration
from attnlearn.engine._pieces import Pieces, added, summed_by


def test_sums_are_in_the_memory_of_the_first():
    first = np.ones(3)
    assert added([first, np.full(3, 2.0)]) is first
    assert first.tolist() == [3.0, 3.0, 3.0]


def test_tuples_are_added_part_by_part():
    total, number, nothing = added([(np.ones(2), 1.5, None), (np.ones(2), 2.0, None)])
    assert total.tolist() == [2.0, 2.0]
    assert (number, nothing) == (3.5, None)


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: int) -> int:
        self.calls += 1
        return 2 * value


def test_what_is_kept_is_computed_once_and_the_rest_once_in_every_sum():
    for keep, calls in ((True, 3), (False, 6)):
        count = Counted()
        doubled = Pieces.of([1, 2, 3]).derive(count, keep=keep)
        squares = doubled.derive(operator.mul, doubled, keep=False)
        for _again in range(2):
            assert squares.sum(operator.add, doubled) == 2 * 6 + 4 * 14
        assert count.calls == calls


def test_what_was_dropped_is_computed_again():
    count = Counted()
    doubled = Pieces.of([1, 2]).derive(count)
    tripled = doubled.derive(operator.mul, given=(3,))
    assert list(tripled) == [6, 12]
    doubled.drop()
    assert list(tripled) == [6, 12]
    assert count.calls == 2
    assert list(doubled) == [2, 4]
    assert count.calls == 4


def test_threads_are_asked_only_where_there_is_work(monkeypatch):
    taken = []
    monkeypatch.setattr("attnlearn.engine._pieces.in_order", lambda *given: taken.append(1) or map(*given))
    for work in (0.0, calibration.THREAD_WORK):
        assert Pieces.of([1, 2]).derive(abs, work=work).sum(abs) == 3
    assert taken == [1]


class Everything:
    def worth(self, work: float) -> bool:
        return work > 10

    def sum(self, sources, function, given):
        return "elsewhere"


def test_only_sums_that_are_worth_it_run_elsewhere():
    with summed_by(Everything()):
        assert Pieces.of([1, 2]).derive(abs, work=6).sum(abs) == "elsewhere"
        assert Pieces.of([1, 2]).derive(abs, work=5).sum(abs) == 3
    assert Pieces.of([1, 2]).derive(abs, work=6).sum(abs) == 3
