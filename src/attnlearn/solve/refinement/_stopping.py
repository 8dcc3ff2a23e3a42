"""Stopping: when a descent ends, in the words of `Refined.stop`.

deadline   the time is over
floor      the relative residual is at most `FLOOR` machine epsilons, or below `FLOOR_STALL` and no longer halving
target     the relative residual is at most `RefineConfig.tolerance`
noise      stationary: the best linear step would remove less than `RefineConfig.negligible` of the squared residual
stalled    no damped step decreases the residual, or the last steps hardly changed it (`Trace`)
max_steps  none of these within `max_steps` outer steps

"noise" says that the optimum is reached and its residual is not rounding. Whether that is noise in y or another
local optimum cannot be seen from one fit.
"""

from __future__ import annotations

import numpy as np

from attnlearn.solve import _calibration as calibration
from attnlearn.solve._deadline import passed
from attnlearn.solve.refinement._config import RefineConfig
from attnlearn.solve.refinement._trace import Trace


def reason_to_stop(
    config: RefineConfig,
    trace: Trace,
    residual: float,
    shrink: float,
    promised: float,
    eps: float,
    final: bool,
) -> str | None:
    """The reason to stop, or None.

    `shrink` is the factor by which the last step changed the residual (NaN when no step was accepted), `promised` the share
    of the squared residual that the linear model promised, and `eps` the rounding of the residuals. `final` says that no
    further examples will be taken.
    """
    if passed(config.deadline):
        return "deadline"
    if residual <= calibration.FLOOR * eps:
        return "floor"
    if residual <= config.tolerance:
        return "target"
    if not shrink <= calibration.HALVED and residual <= calibration.FLOOR_STALL * eps:
        return "floor"
    if promised <= (config.negligible if final else calibration.ROUGH):
        return "noise"
    if np.isnan(shrink) or trace.stalled_at_large_residual(residual) or trace.stalled_in_float64():
        return "stalled"
    return "max_steps" if len(trace.steps) >= config.max_steps else None
