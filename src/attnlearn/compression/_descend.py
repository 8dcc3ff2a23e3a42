"""Descend: limited-memory quasi-Newton steps on the factors of a shape, with O and b eliminated.

The residual of a smaller layer does not go to zero, so Gauss-Newton has no digits to win by its second-order products; ten
evaluations of L-BFGS on sapiens layer 0 at half the width come within 1 % of where a hundred end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.optimize

from attnlearn.compression import _calibration as calibration
from attnlearn.compression._factored import Factored
from attnlearn.compression._projection import Projection
from attnlearn.solve._chunks import on_threads


class Descended(NamedTuple):
    """The factors, the relative error of every step, and why it ended: settled, max_steps or deadline."""

    factors: Factored
    errors: list[float]
    stop: str


def descend(
    projection: Projection,
    start: Factored,
    *,
    steps: int,
    deadline: float | None = None,
    on_step: Callable[[float], None] = lambda error: None,
) -> Descended:
    """At most so many steps, until the last few gain little or the time is up; never worse than the start."""
    errors: list[float] = []
    stop = ["max_steps"]
    if steps == 0:
        return Descended(start, errors, stop[0])

    def evaluated(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value = projection(start.shaped(vector))
        cost, slope = value.cost, value.gradient.flat()
        return (
            (cost, slope)
            if np.isfinite(cost) and np.isfinite(slope).all()
            else (np.inf, np.zeros_like(slope))
        )

    def noted(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        errors.append(float(np.sqrt(intermediate_result.fun)))
        on_step(errors[-1])
        few = calibration.SETTLED_STEPS
        if len(errors) > few and errors[-1] > (1 - calibration.SETTLED) * errors[-1 - few]:
            stop[0] = "settled"
            raise StopIteration
        if deadline is not None and time.monotonic() >= deadline:
            stop[0] = "deadline"
            raise StopIteration

    with on_threads():
        found = scipy.optimize.minimize(
            evaluated, start.flat().astype(np.float64), jac=True, method="L-BFGS-B", callback=noted,
            options={"maxiter": steps, "maxcor": calibration.MEMORY, "maxfun": 2 * steps + 10},
        )  # fmt: skip
    return Descended(start.shaped(found.x), errors, stop[0])
