"""The refine phase: the shared Gauss-Newton on as many fit examples as the unknowns ask for.

It takes the answer of a route (theta, w, query_bias, output_bias in the state) and leaves the refined answer in the
same fields. `refine` itself starts with few examples and adds more; what it may add is bounded here, so that memory
depends on the layer and not on the number of examples. Only when there is noise to average out, all fit examples are
used, as far as memory is granted. Computed in float64 whatever the data are; the answer has their dtype.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeVar

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.data import Examples
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._conclude import held, unknowns
from attnlearn.solve._calibration import APART_LEAST, VISIBLE
from attnlearn.solve._certify import (
    Held,
    exactness_limit,
    example_scale,
    head_visibility,
    rounding_floor,
    unit_errors,
)
from attnlearn.solve._refine import RefineConfig, Refined, refine

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
    select, scale = held(examples, split.select), example_scale(fit)
    tolerance = 0.0 if examples.dtype == np.float64 else float(np.finfo(examples.dtype).eps) / 2

    def attempt(start: AttentionLayer, fit: Held, rank: int | None, **limits: Any) -> _Attempt:
        refined = refine(
            start.astype(np.float64),
            fit.x.astype(np.float64),  # what float32 outputs can tell lies below what float32 sums can hold
            fit.y.astype(np.float64),
            mask=fit.mask,
            rank=rank,
            config=RefineConfig(seed=tools.seed, tolerance=tolerance, **limits),
            on_step=lambda step: tools.progress.update(residual=step["residual"]),
        )
        layer = refined.layer.astype(examples.dtype)
        error = _rms(unit_errors(layer, select, scale))
        exact = error <= exactness_limit(rounding_floor(layer, select, scale), examples.dtype)
        tried.append(
            {"rank": refined.rank, "residual": refined.residual, "stop": refined.stop, "select_error": error}
        )
        return _Attempt(refined, error, exact)

    tried: list[dict[str, Any]] = []
    best = attempt(start, fit, guess)
    if guess is not None and not best.exact:  # the rank may be what keeps the fit from being exact
        whole = attempt(best.refined.layer, fit, None, max_steps=calibration.WHOLE_STEPS)
        if whole.error < calibration.WHOLE_BETTER * best.error:
            best = whole if whole.exact else attempt(whole.refined.layer, fit, None)
    if best.refined.stop == "noise" and not best.exact and best.error < calibration.MISFIT:
        every = held(examples, split.fit[: _affordable(examples)])
        best = attempt(best.refined.layer, every, best.refined.rank, equations_per_unknown=np.inf)
    alone = head_visibility(best.refined.layer.astype(examples.dtype), select, scale)
    idle = alone < VISIBLE * best.error
    needed = _needed(best.refined.layer, idle)
    if needed.num_heads < len(idle):  # a start with too many heads
        fewer = attempt(needed, fit, best.refined.rank)
        best = fewer if fewer.exact or fewer.error <= best.error else best
    refined = best.refined
    info = {
        "examples": refined.examples,
        "residual": refined.residual,
        "select_error": best.error,
        "stop": refined.stop,
        "tried": tried,
        "steps": refined.steps,
    }
    found = refined.layer.astype(examples.dtype).parameters._asdict()
    return dataclasses.replace(state, rank=refined.rank, **found), info  # type: ignore[type-var]


class _Attempt(NamedTuple):
    refined: Refined
    error: float  # on select examples
    exact: bool  # to the rounding of the data's dtype


def _needed(layer: AttentionLayer, idle: np.ndarray) -> AttentionLayer:
    """The layer without heads that the outputs do not show, and with heads that are nearly the same as one."""
    if idle.all():
        return layer
    heads = (layer.theta[~idle], layer.w[~idle], layer.query_bias[~idle])
    return AttentionLayer(*heads, layer.output_bias, causal=layer.causal).canonical(APART_LEAST)


def _affordable(examples: Examples) -> int:
    """Examples of which refine may hold a copy, in float64."""
    one = 8 * examples.tokens * (examples.dim + examples.out_dim)
    return max(calibration.REFINE_FEWEST, calibration.REFINE_BYTES // one)


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))
