"""Shapes, one phase for each: the closed form, its factors fitted with W held to its rank, and judged on select examples.

Each shape gets a few steps on some of the fit examples. Where several shapes meet what was asked for, the one with the smallest error on select examples goes
on. The last phase fits the chosen shape to the end, and then once more on fit and select examples together; when the time is up, it
ends after the step at hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.compression import _calibration as calibration
from attnlearn.compression._closed import closed_form, scores, smallest
from attnlearn.compression._descend import descend
from attnlearn.compression._factored import Factored
from attnlearn.compression._grouping import best_groups
from attnlearn.compression._phases import Phase
from attnlearn.compression._projection import Projection
from attnlearn.compression._shape import Shape
from attnlearn.compression._state import Problem, State, padded, select_error
from attnlearn.engine import Tools
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression, select
from attnlearn.solve._rank import largest_rank

Evidence = dict[str, Any]


def shaping_phases(problem: Problem) -> list[Phase]:
    """The phases for every shape that meets what is wanted, and the last fit; none where only heads are counted."""
    if not problem.wanted.shaped:
        return []
    width = head_width(problem.layer)
    # A head that does the work of several can use more than theirs.
    widest = problem.layer.dim if problem.num_heads < problem.layer.num_heads else width
    shapes = problem.wanted.shapes(problem.num_heads, width, widest)
    trials: list[Phase] = [(shape.words(), _trial(shape)) for shape in shapes]
    return [*trials, ("fit the shape", _fit)]


def head_width(layer: AttentionLayer) -> int:
    """The width that every head of the layer fits into."""
    inside = Parameters(*layer.parameters)
    return max(1, largest_rank(scores(inside)), largest_rank(inside.w))


def _trial(shape: Shape) -> Callable[..., tuple[State, Evidence]]:
    def trial(problem: Problem, state: State, tools: Tools) -> tuple[State, Evidence]:
        ground = WhitenedRegression(trial_side(problem.sides.fit, shape), problem.layer.causal)
        inside = ground.enter(padded(state.layer(problem.layer.causal), shape.num_heads))
        groups = best_groups(inside, shape.kv_heads, shape.head_dim)
        inside = select(inside, np.concatenate(groups))
        factors = closed_form(inside, shape)
        layer = truncated(ground, inside, factors)
        error = select_error(layer, problem.sides.select)
        evidence: Evidence = {"groups": [list(map(int, group)) for group in groups], "closed form": error}
        exact = calibration.EXACT[layer.dtype.name]
        reached = (
            smallest(inside, shape) if error <= exact and problem.wanted.kv_floats is not None else shape
        )
        if error > exact:
            steps = min(calibration.TRIAL_STEPS, problem.shape_steps)
            fitted, more = _descended(ground, factors, steps, tools)
            layer, error, evidence = _better((layer, error), fitted, problem.sides.select, evidence | more)
        state = dataclasses.replace(
            state, shapes=(*state.shapes, reached), shape_errors=(*state.shape_errors, error)
        )
        if _is_better(state, reached, error, exact):
            state = state.answered(layer, error, reached)
        return state, evidence | {"error": error}

    return trial


def _is_better(state: State, shape: Shape, error: float, exact: float) -> bool:
    """Whether this shape goes before the answer so far: by its error, and of exact shapes by the floats that it keeps."""
    if state.shape is None or max(error, state.answer_error) > exact:
        return error < state.answer_error or state.shape is None
    return (shape.kv_floats, shape.head_dim) < (state.shape.kv_floats, state.shape.head_dim)


def trial_side(fit: Batch, shape: Shape) -> Batch:
    """As many of the fit examples as a trial of this shape takes."""
    (num, tokens, dim), out_dim = fit.x.shape, fit.y.shape[-1]
    wanted = calibration.TRIAL_EQUATIONS * shape.parameters(dim, out_dim) / (tokens * out_dim)
    return fit.take(np.arange(min(num, int(np.ceil(wanted)))))


def _fit(problem: Problem, state: State, tools: Tools) -> tuple[State, Evidence]:
    """The chosen shape, fitted to the end."""
    layer, shape, error = state.answer(problem.layer.causal), state.shape, state.answer_error
    assert layer is not None, "a shape was tried before"
    assert shape is not None, "a shape was tried before"
    evidence: Evidence = {"shape": shape.words()}
    if error > calibration.EXACT[layer.dtype.name]:
        ground = WhitenedRegression(problem.sides.fit, problem.layer.causal)
        factors = closed_form(ground.enter(layer), shape)
        fitted, evidence = _descended(ground, factors, problem.shape_steps, tools, tools.deadline)
        layer, error, evidence = _better((layer, error), fitted, problem.sides.select, evidence)
        if layer is fitted and not tools.out_of_time:
            ground = WhitenedRegression(problem.sides.seen, problem.layer.causal)
            factors = closed_form(ground.enter(layer), shape)
            layer, last = _descended(ground, factors, calibration.TRIAL_STEPS, tools, tools.deadline)
            evidence["with select examples"] = last["errors"]
    places = [error if one == shape else old for one, old in zip(state.shapes, state.shape_errors)]
    state = dataclasses.replace(state, shape_errors=tuple(places), fitted=True)
    return state.answered(layer, error, shape), evidence | {"error": error}


def _better(
    now: tuple[AttentionLayer, float], fitted: AttentionLayer, held: Batch, evidence: Evidence
) -> tuple[AttentionLayer, float, Evidence]:
    """The layer with the smaller error, its error, and the evidence with that of the fitted one."""
    error = select_error(fitted, held)
    layer, least = (fitted, error) if error < now[1] else now
    return layer, least, evidence | {"fitted": error}


def _descended(
    ground: WhitenedRegression, factors: Factored, steps: int, tools: Tools, deadline: float | None = None
) -> tuple[AttentionLayer, Evidence]:
    """The layer after so many steps on the factors, in float32, its O and b in the precision of the data."""
    single = Projection(ground.chunks.astype(np.float32), ground.causal, ground.total)
    found = descend(
        single,
        factors,
        steps=steps,
        deadline=deadline,
        on_step=lambda error: tools.progress.update(error=error),
    )
    linear = Projection(ground.chunks, ground.causal, ground.total).linear(found.factors)
    both = found.factors.scores()
    inside = Parameters(both[:, :-1], found.factors.projections(linear[:-1]), both[:, -1], linear[-1])
    return ground.leave(inside), {"errors": found.errors, "stop": found.stop}


def truncated(ground: WhitenedRegression, inside: Parameters, factors: Factored) -> AttentionLayer:
    """The layer with its own W seen through the values of the factors, which are orthonormal: nothing is refitted."""
    values = np.repeat(factors.opened().value, factors.share, axis=0)
    outputs = np.swapaxes(values, 1, 2) @ inside.w
    both = factors.scores()
    return ground.leave(inside._replace(theta=both[:, :-1], query_bias=both[:, -1], w=values @ outputs))
