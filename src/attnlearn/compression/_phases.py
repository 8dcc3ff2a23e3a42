"""Fewer heads, one phase for each number: choose or merge, refit, refine, and judge on select examples.

Every count starts from the answer with one head more, so heads that are redundant go first and the curve has no
accidental bumps. Refining moves all Theta_i and c_i by Gauss-Newton with W and b eliminated; the residual does not go to
zero, which costs Gauss-Newton its quadratic convergence but not its descent: every accepted step lowers the error.
A layer with h heads is also one with more (add heads that do nothing), hence the curve of the best layer with *at
most* h heads never rises with h.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.compression import _calibration as calibration
from attnlearn.compression._start import one_fewer
from attnlearn.compression._state import Problem, State, select_error
from attnlearn.engine import Tools
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression
from attnlearn.solve._rank import largest_rank
from attnlearn.solve.refinement import RefineConfig, Refined, refine

Phase = tuple[str, Callable[..., Any]]


def counting_phases(problem: Problem, down_to: int) -> list[Phase]:
    """The phases for every number of heads from one below the source's to `down_to`."""
    first = problem.layer.num_heads - 1
    return [(f"{h} head{'s' if h > 1 else ''}", _phase(h)) for h in range(first, down_to - 1, -1)]


def first_state(problem: Problem) -> State:
    """The source itself."""
    return _noted(problem, State(**problem.layer.parameters._asdict()), problem.layer)[0]


def _phase(heads: int) -> Callable[..., Any]:
    def fewer(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
        ground = WhitenedRegression(problem.sides.fit, problem.layer.causal)
        start = one_fewer(state.layer(problem.layer.causal), ground)
        before = select_error(start.layer, problem.sides.select)
        layer, evidence = start.layer, {"start": start.made_by, "fit": start.errors, "refitted": before}
        if before > calibration.EXACT[layer.dtype.name]:
            layer, refined = _refined(problem, layer, heads, before, tools)
            evidence |= refined
        state, error = _noted(problem, dataclasses.replace(state, **layer.parameters._asdict()), layer)
        return state, evidence | {"error": error}

    return fewer


def _refined(
    problem: Problem, start: AttentionLayer, heads: int, before: float, tools: Tools
) -> tuple[AttentionLayer, dict[str, Any]]:
    """The layer after Gauss-Newton steps, a few at a time, until the last one gains little; the start if all gain nothing."""
    left = problem.steps if heads == problem.num_heads else problem.steps_on_the_way
    rank, steps = score_rank(problem, heads), []
    layer, stop, last = start, "max_steps", 0.0
    while left > 0 and stop == "max_steps" and last < 1 - calibration.LITTLE:
        found = _stepped(problem.sides.fit, layer, rank, min(left, calibration.STEPS_AT_ONCE), tools)
        layer, stop, left = found.layer, found.stop, left - calibration.STEPS_AT_ONCE
        steps += found.steps
        last = steps[-1]["residual"] / steps[-2]["residual"] if len(steps) > 1 else 0.0
    after = select_error(layer, problem.sides.select)
    return (layer if after < before else start), {"refined": after, "stop": stop, "steps": steps}


def _stepped(fit: Batch, start: AttentionLayer, rank: int | None, steps: int, tools: Tools) -> Refined:
    """At most so many Gauss-Newton steps."""
    return refine(
        start,
        fit.x,
        fit.y,
        mask=fit.mask,
        rank=rank,
        config=RefineConfig(
            max_steps=steps,
            max_inner=calibration.INNER,
            damping=calibration.DAMPING,
            equations_per_unknown=np.inf,
            seed=tools.seed,
        ),
        on_step=lambda step: tools.progress.update(error=step["residual"]),
    )


def score_rank(problem: Problem, heads: int) -> int | None:
    """The rank to which Theta is held while refining: it keeps the unknowns few and the factors narrow."""
    dim = problem.layer.dim
    rank = max(1, largest_rank(problem.layer.theta), dim // heads)
    return None if rank >= dim else rank


def _noted(problem: Problem, state: State, layer: AttentionLayer) -> tuple[State, float]:
    """The state with this layer's error on the curve, and as the answer if it is the best that has few enough heads."""
    error = select_error(layer, problem.sides.select)
    state = dataclasses.replace(
        state, heads=(*state.heads, layer.num_heads), errors=(*state.errors, float(error))
    )
    enough = layer.num_heads <= problem.num_heads and error < state.answer_error
    return (state.answered(layer, error) if enough else state), error
