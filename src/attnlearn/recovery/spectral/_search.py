"""Search: random starts and Gauss-Newton, for tokens of which the moment can say nothing.

The moment wants tokens that are independent across positions, or correlated in the separable way that `prepare`
models. Recorded activations often are neither: positions have means and distributions of their own. Regression does
not mind. Heads start from small random scores; the count grows from one until a start explains the select side.
Without that, the run ends as the moment ended it.

Cost: a call of refine per start, so only where it is affordable: few directions, several equations per unknown.
On the two layers of a small transformer trained on digits (d = 32, 4 heads) one start took 6 s of one core; of four
starts with the right count three reached rounding at score standard deviation 0.5, two at 1 and none at 2.
What can fail: starts that end in local optima; a count too small by the luck of the starts is refused by certify.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Stop, Tools
from attnlearn.recovery._conclude import held, unknowns
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._state import Problem, State
from attnlearn.recovery.spectral._unmix import from_white
from attnlearn.solve._certify import example_scale, unit_errors
from attnlearn.solve._refine import RefineConfig, refine

PhaseFunction = Callable[[Problem, State, Tools], tuple[State, dict[str, Any]]]


def or_search(phase: PhaseFunction, last: bool = False) -> PhaseFunction:
    """A phase that leaves dependent tokens on which it fails to the search, which takes the place of the last."""

    @wraps(phase)
    def run(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
        evidence: dict[str, Any] = {}
        if state.stopped is None:
            try:
                return phase(problem, state, tools)
            except Stop as stop:
                if not searchable(problem, state):
                    raise
                evidence = stop.evidence | {"stopped": stop.outcome_name}
                needed = stop.evidence.get("examples_needed")
                state = dataclasses.replace(state, stopped=stop.outcome_name, examples_needed=needed)
        if not last:
            return state, evidence or {"skipped": state.stopped}
        state, info = search(problem, state, tools)
        return state, evidence | info

    return run


def searchable(problem: Problem, state: State) -> bool:
    """Whether tokens depend on their positions or on each other, and the search is affordable."""
    assert state.position_correlation is not None
    assert state.position_mean is not None
    dependent = np.any(state.position_correlation != np.eye(problem.examples.tokens))
    moved = np.any(state.position_mean != 0)
    return bool(dependent or moved) and state.inverse.shape[0] <= calibration.SEARCH_DIRECTIONS


def search(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The first random start that explains the select side, by increasing number of heads."""
    examples, split = problem.examples, problem.split
    fit = held(examples, split.fit[: calibration.SEARCH_EXAMPLES])
    select, scale = held(examples, split.select), example_scale(fit)
    x, y = fit.x.astype(np.float64), fit.y.astype(np.float64)
    config = RefineConfig(
        max_steps=calibration.SEARCH_STEPS,
        max_inner=calibration.SEARCH_INNER,
        tolerance=1e-7,
        seed=tools.seed,
    )
    tried: list[dict[str, Any]] = []
    for start in starts(problem, state, y.size, tools):
        refined = refine(start, x, y, mask=fit.mask, config=config)
        layer = refined.layer.astype(examples.dtype)
        error = float(np.sqrt(np.mean(unit_errors(layer, select, scale) ** 2)))
        tried.append({"heads": start.num_heads, "select_error": error, "steps": len(refined.steps)})
        tools.progress.update(heads=start.num_heads, error=error)
        if error <= calibration.SEARCH_FOUND:
            found = dataclasses.replace(
                state, num_heads=start.num_heads, rank=None, **layer.parameters._asdict()
            )
            return found, {"searched": tried}
    assert state.stopped is not None
    needed = {} if state.examples_needed is None else {"examples_needed": state.examples_needed}
    raise Stop(state.stopped, {"searched": tried} | needed, state)


def starts(problem: Problem, state: State, equations: int, tools: Tools) -> Iterator[AttentionLayer]:
    """Layers of small random scores on the tokens' support, a few for every count that the equations can tell."""
    r, out = state.inverse.shape[0], problem.examples.out_dim
    most = range(1, calibration.SEARCH_HEADS + 1)
    for heads in most if problem.num_heads is None else (problem.num_heads,):
        rng = tools.rng(f"search {heads}")
        for _ in range(calibration.SEARCH_STARTS):
            white = rng.standard_normal((heads, r, r)) * calibration.SEARCH_SCORES / r
            zeros = np.zeros((heads, r)), np.zeros((heads, r, out)), np.zeros(out)
            layer = AttentionLayer(**from_white(state, white, *zeros), causal=bool(state.causal))
            if unknowns(layer, None) * calibration.SEARCH_EQUATIONS > equations:
                return
            yield layer
