"""Which precision a descent works in, as a table."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.solve._chunks import cut
from attnlearn.solve.refinement._precision import Precision


def made(dtype=np.float64, float64_solves=True, moved=False) -> Precision:
    x = np.zeros((4, 3, 2), dtype)
    found = Precision(cut(x, x, None), float64_solves)
    if moved:
        found.residuals = found.data
    return found


def test_everything_begins_in_float32():
    found = made()
    assert found.residuals.dtype == found.solves.dtype == np.float32
    assert found.data.dtype == np.float64
    assert found.eps == np.finfo(np.float32).eps


@pytest.mark.parametrize(("residual", "stop", "wanted"), [
    (0.1, None, False), (1e-5, None, True), (0.1, "noise", True), (1e-5, "deadline", False),
])  # fmt: skip
def test_residuals_move_to_the_precision_of_the_data(residual, stop, wanted):
    assert made().doubts_residuals(residual, stop) == wanted
    assert not made(np.float32).doubts_residuals(residual, stop)
    assert not made(moved=True).doubts_residuals(residual, stop)


@pytest.mark.parametrize(("residual", "shrink", "stop", "wanted"), [
    (1e-4, 0.9, None, True), (1e-4, 0.1, None, False), (1e-4, 0.1, "noise", True), (1e-4, np.nan, "stalled", True),
    (1e-2, 0.9, None, False), (1e-16, 0.9, "floor", False), (1e-4, 0.9, "target", False), (1e-4, 0.9, "deadline", False),
])  # fmt: skip
def test_solves_move_when_a_small_residual_hardly_falls(residual, shrink, stop, wanted):
    assert made(moved=True).doubts_solves(residual, shrink, stop) == wanted
    assert not made(moved=True, float64_solves=False).doubts_solves(residual, shrink, stop)
    assert not made().doubts_solves(residual, shrink, stop)  # residuals come first
    double = made(moved=True)
    double.solves = double.data
    assert not double.doubts_solves(residual, shrink, stop)
