"""When no body can be carved: is it because there are more heads than rows can prove anything about?

At most floor(d_out/(k - 1)) heads can be certified. If no layer with so many heads fits the examples, and one with a
few more does (by refine from random starts, to rounding), then the condition m (k - 1) <= d_out is what is broken.
This names the reason of a failure; it is never used to answer.

Cost: a few calls of refine. What can fail: random starts that miss the fit; the reason then stays open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._forward import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery._conclude import held
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.solve._refine import RefineConfig, refine


def broken_condition(problem: Problem, state: State, tools: Tools) -> dict[str, Any] | None:
    """Both sides of m (k - 1) <= d_out when it is seen to be broken, otherwise None."""
    tokens, out_dim = problem.examples.tokens, problem.examples.out_dim
    most = out_dim // (tokens - 1)
    if problem.num_heads is not None or _fits(problem, state, max(most, 1), tools):
        return None
    for heads in range(most + 1, most + 1 + calibration.HEADS_BEYOND):
        if _fits(problem, state, heads, tools):
            return {"condition": "m (k - 1) <= d_out", "left": heads * (tokens - 1), "right": out_dim}
    return None


def _fits(problem: Problem, state: State, heads: int, tools: Tools) -> bool:
    """Whether refine reaches rounding with so many heads from one of a few random starts."""
    fit = held(problem.examples, problem.split.fit[: calibration.DIAGNOSED])
    rng = tools.rng(f"diagnose {heads}")
    rank, out = state.root.shape[1], fit.y.shape[2]
    for _ in range(calibration.DIAGNOSIS_STARTS):
        theta = rng.standard_normal((heads, rank, rank)) * calibration.DIAGNOSIS_SCALE / rank
        zero = Parameters(theta, np.zeros((heads, rank, out)), np.zeros((heads, rank)), np.zeros(out))
        arrays = [array.astype(fit.x.dtype) for array in state.whitening.leave(zero)]
        start = AttentionLayer(*arrays, causal=bool(state.causal))
        if refine(start, fit.x, fit.y, mask=fit.mask, config=RefineConfig(seed=tools.seed)).stop == "floor":
            return True
    return False
