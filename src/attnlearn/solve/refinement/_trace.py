"""Trace: the evidence of every outer step, and whether the last ones got anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn.solve import _calibration as calibration
from attnlearn.solve._step import Step


class Trace:
    """The steps of one call of `refine`; `examples` is the number of examples that are in use."""

    def __init__(self, on_step: Callable[[dict[str, Any]], None] | None) -> None:
        self.on_step, self.steps, self.examples = on_step, [], 0
        self.began = self.step_began = time.perf_counter()

    def note(self, step: Step, residual: float, **evidence: Any) -> None:
        """Write down one step, accepted or not."""
        now = time.perf_counter()
        info = {
            "step": len(self.steps),
            "residual": residual,
            "inner": step.inner,
            **evidence,
            "examples": self.examples,
            "seconds": now - self.step_began,
            "elapsed": now - self.began,
        }
        self.steps.append(info)
        if self.on_step is not None:
            self.on_step(info)

    def stalled_at_large_residual(self, residual: float) -> bool:
        """Whether the last steps on these examples hardly changed a large residual."""
        past = [s["residual"] for s in self.steps if s["accepted"] and s["examples"] == self.examples]
        if residual <= calibration.FEW or len(past) <= calibration.TRIES:
            return False
        return past[-1] > (1 - calibration.NEGLIGIBLE) * past[-1 - calibration.TRIES]

    def stalled_in_float64(self) -> bool:
        """Whether the last steps, solved for in float64, together won less than a digit: then no number of them will do."""
        past = [
            s["residual"]
            for s in self.steps[-calibration.TRIES :]
            if s["solved"] == np.dtype(np.float64).name
        ]
        return len(past) == calibration.TRIES and min(past) > calibration.DIGIT * past[0]
