"""The refine phase: the shared Gauss-Newton on as many fit examples as the unknowns ask for.

It takes the answer of a route (theta, w, query_bias, output_bias in the state) and leaves the refined answer in the
same fields. `refine` itself starts with few examples and adds more; what it may add is bounded here, so that memory
depends on the layer and not on the number of examples.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._conclude import held, unknowns
from attnlearn.solve._certify import example_scale, unit_errors
from attnlearn.solve._refine import RefineConfig, refine

State = TypeVar("State")


def answer(state: Any) -> AttentionLayer:
    """The layer in a route's state."""
    return AttentionLayer(
        state.theta, state.w, state.query_bias, state.output_bias, causal=bool(state.causal)
    )


def refine_phase(problem: Any, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """Refine the answer in `state` on the fit side; evidence: residual by step, error on select, why it stopped."""
    start, guess = answer(state), getattr(state, "rank", None)
    examples, split = problem.examples, problem.split
    rows = examples.tokens * examples.out_dim
    most = int(np.ceil(calibration.REFINE_EQUATIONS * unknowns(start, guess) / rows))
    fit = held(examples, split.fit[: max(most, calibration.REFINE_FEWEST)])
    tried = []
    for rank in dict.fromkeys((guess, None)):
        refined = refine(
            start.astype(fit.x.dtype),
            fit.x,
            fit.y,
            mask=fit.mask,
            rank=rank,
            config=RefineConfig(seed=tools.seed),
            on_step=lambda step: tools.progress.update(residual=step["residual"]),
        )
        tried.append({"rank": rank, "residual": refined.residual, "stop": refined.stop})
        if refined.stop in ("floor", "target"):
            break  # otherwise the rank may be what keeps the fit from being exact
    errors = unit_errors(refined.layer, held(examples, split.select), example_scale(fit))
    info = {
        "examples": refined.examples,
        "residual": refined.residual,
        "select_error": float(np.sqrt(np.mean(errors**2))),
        "stop": refined.stop,
        "tried": tried,
        "steps": refined.steps,
    }
    return dataclasses.replace(state, rank=rank, **refined.layer.parameters._asdict()), info  # type: ignore[type-var]
