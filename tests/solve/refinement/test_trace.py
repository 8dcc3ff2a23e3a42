"""The trace: one dict per step, told as it happens."""

from __future__ import annotations

import numpy as np

from attnlearn.solve._step import Step
from attnlearn.solve.refinement._trace import Trace


def test_every_step_is_written_down_and_told():
    told = []
    trace = Trace(told.append)
    trace.examples = 7
    for residual in (0.5, 0.25):
        trace.note(Step(None, np.zeros(1), 3, 0.1), residual, accepted=True)
    assert told == trace.steps
    assert [step["step"] for step in told] == [0, 1]
    assert [step["residual"] for step in told] == [0.5, 0.25]
    assert {step["examples"] for step in told} == {7}
    assert all(step["inner"] == 3 and step["accepted"] for step in told)
    assert told[0]["elapsed"] <= told[1]["elapsed"]


def test_nobody_has_to_listen():
    trace = Trace(None)
    trace.note(Step(None, np.zeros(1), 0, 0.0), 1.0)
    assert len(trace.steps) == 1
