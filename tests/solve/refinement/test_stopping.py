"""When a descent stops, as a table; and when the last steps got nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.solve import _calibration as calibration
from attnlearn.solve.refinement import RefineConfig
from attnlearn.solve.refinement._stopping import reason_to_stop
from attnlearn.solve.refinement._trace import Trace

EPS = float(np.finfo(float).eps)
GOING = {"residual": 0.1, "shrink": 0.3, "promised": 0.9}


def traced(residuals, accepted=True, solved="float32", examples=5) -> Trace:
    trace = Trace(None)
    trace.examples = examples
    for residual in residuals:
        trace.steps.append(
            {"residual": residual, "accepted": accepted, "solved": solved, "examples": examples}
        )
    return trace


@pytest.mark.parametrize(("state", "config", "final", "wanted"), [
    ({}, {}, True, None),
    ({}, {"deadline": 0.0}, True, "deadline"),
    ({"residual": 10 * EPS}, {}, True, "floor"),
    ({"residual": 1e3 * EPS, "shrink": 0.9}, {}, True, "floor"),
    ({"residual": 1e3 * EPS, "shrink": 0.4}, {}, True, None),
    ({"residual": 1e3 * EPS, "shrink": np.nan}, {}, True, "floor"),
    ({"residual": 0.01}, {"tolerance": 0.02}, True, "target"),
    ({"promised": 1e-7}, {}, True, "noise"),
    ({"promised": 1e-3}, {}, True, None),
    ({"promised": 1e-3}, {}, False, "noise"),
    ({"shrink": np.nan}, {}, True, "stalled"),
    ({}, {"max_steps": 0}, True, "max_steps"),
])  # fmt: skip
def test_the_reasons(state, config, final, wanted):
    found = reason_to_stop(RefineConfig(**config), Trace(None), **(GOING | state), eps=EPS, final=final)
    assert found == wanted


def test_a_large_residual_that_hardly_falls_is_stalled():
    slow = 0.3 * (1 - 1e-5) ** np.arange(calibration.TRIES + 2)
    assert traced(slow).stalled_at_large_residual(0.3)
    assert not traced(slow[: calibration.TRIES]).stalled_at_large_residual(0.3)
    assert not traced(slow).stalled_at_large_residual(0.5 * calibration.FEW)
    assert not traced(0.3 * 0.99 ** np.arange(20)).stalled_at_large_residual(0.3)
    later = traced(slow)
    later.examples = 6  # the steps were on other examples
    assert not later.stalled_at_large_residual(0.3)


def test_float64_steps_must_win_a_digit():
    slow, fast = np.geomspace(1, 0.5, calibration.TRIES), np.geomspace(1, 0.05, calibration.TRIES)
    assert traced(slow, solved="float64").stalled_in_float64()
    assert not traced(fast, solved="float64").stalled_in_float64()
    assert not traced(slow, solved="float32").stalled_in_float64()
    assert not traced(slow[1:], solved="float64").stalled_in_float64()
