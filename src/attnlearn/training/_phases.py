"""The phases of `fit`, in order: initialize, compare, descend, replay.

Each takes the problem and the state of the run and returns the state and its evidence. `descend` writes a
checkpoint inside after every segment of the compiled loop, so a killed run repeats at most one segment and
ends in the same bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnlearn._jax import jnp
from attnlearn.engine import Stop, Tools
from attnlearn.training._calibration import DIVERGED, MAX_HALVINGS, ROUNDING_UNITS, SEGMENT_STEPS
from attnlearn.training._compare import choose_comparator, choose_step, tangent, to_device
from attnlearn.training._descent import Rates, State, Trace, advance, finish, start
from attnlearn.training._fit import TrainState, with_weights
from attnlearn.training._initialize import first_step_size, largest_head
from attnlearn.training._leave_one_out import first_distance
from attnlearn.training._loss import Chunks, cut
from attnlearn.training._model import Weights, equal_scales
from attnlearn.training._problem import Problem
from attnlearn.training._replay import replay_runs


def initialize_phase(problem: Problem, state: TrainState, tools: Tools) -> tuple[TrainState, dict]:
    """theta_0 with B2 and B_Phi."""
    weights = problem.first_weights(tools.rng("initialize"))
    chunks, scales = _data(problem)
    _, margins, _ = finish(problem.model, weights, chunks, scales, weights)
    head, value = largest_head(weights), float(jnp.max(jnp.abs(margins)))
    return replace(state, start=list(weights), head=head, value=value), {"B2": head, "B_Phi": value}


def compare_phase(problem: Problem, state: TrainState, tools: Tools) -> tuple[TrainState, dict]:
    """Margin, step and comparator, all fixed before the first step."""
    begin = Weights(*state.start)
    chunks, _ = _data(problem)
    found = tangent(problem, begin, tools.rng("tangent"))
    step = choose_step(problem, begin, found, chunks)
    star = choose_comparator(problem, begin, found, _pace(problem, begin, step), chunks)
    info = {
        "gamma": found.margin,
        "tangent_examples": found.examples,
        "margin_rounds": found.rounds,
        "step": step,
        "loss_star": star.loss,
        "distance": star.distance,
    }
    state = replace(
        state,
        margin=found.margin,
        step=float(step),
        comparator=list(star.weights),
        loss_star=star.loss,
        distance=star.distance,
    )
    return state, info


def _pace(problem: Problem, begin: Weights, step: float) -> float:
    """The expected mean length of a step as a multiple of the gradient, which the comparator's cost is about."""
    if problem.optimizer == "decaying":
        return 2 * step / problem.max_steps**0.5
    if problem.optimizer != "normalized":
        return step
    chunks, scales = _data(problem)
    entry, _, _ = finish(problem.model, begin, chunks, scales, begin)
    return float(step / np.sqrt(max(float(entry.gradient_sq), np.finfo(np.float32).tiny)))


def descend_phase(problem: Problem, state: TrainState, tools: Tools) -> tuple[TrainState, dict]:
    """The run. With step="auto" and gd, a step that does not descend halves the step and starts again."""
    chunks, scales = _data(problem)
    comparator, step, halvings = Weights(*state.comparator), state.step, 0
    retry = problem.optimizer == "gd" and problem.step == "auto"
    saved = tools.resume_inner("descent")
    if saved is not None:
        step, halvings = saved["step"], saved["halvings"]
    with tools.progress.phase("steps", total=problem.max_steps):
        while True:
            rates = _rates(problem, step)
            ended = _descend(problem, state, tools, chunks, scales, rates, saved, halvings, retry)
            if ended is not None:
                break
            saved, step, halvings = None, step / 2, halvings + 1
            if halvings > MAX_HALVINGS:
                raise Stop("NUMERICAL_FAILURE", {"error": "no step descends", "step": step})
    final, trace, distances = ended
    entry, margins, _ = finish(problem.model, final, chunks, scales, comparator)
    trace = np.concatenate([trace, np.array([[float(value)] for value in entry])], axis=1)
    away = [np.asarray(a, np.float64) - np.asarray(b, np.float64) for a, b in zip(final, comparator)]
    state = replace(
        with_weights(state, final),
        step=step,
        trace=trace,
        distances=distances,
        distance_end=float(np.sqrt(sum((part**2).sum() for part in away))),
        margins=np.asarray(margins).reshape(-1)[: len(problem.x)],
    )
    info = {
        "step": step,
        "halvings": halvings,
        "loss": float(trace[0, -1]),
        "margin": float(trace[4, -1]),
        "accuracy": float(trace[5, -1]),
    }
    return state, info


def _descend(
    problem: Problem,
    state: TrainState,
    tools: Tools,
    chunks: Chunks,
    scales: Any,
    rates: Rates,
    saved: dict[str, Any] | None,
    halvings: int,
    retry: bool,
) -> tuple[Weights, np.ndarray, np.ndarray | None] | None:
    """All steps at one step size; None when a step did not descend and `retry` asks for a smaller one."""
    track = problem.config.recursion and problem.optimizer == "gd"
    current = start(
        problem.optimizer, Weights(*map(jnp.asarray, state.start)), _first_distances(problem, chunks, track)
    )
    trace = np.empty((len(Trace._fields), 0))
    if saved is not None:
        current, trace = _restore(saved), saved["trace"]
    comparator = Weights(*map(jnp.asarray, state.comparator))
    while (done := trace.shape[1]) < problem.max_steps:
        steps = min(SEGMENT_STEPS, problem.max_steps - done)
        current, piece = advance(
            problem.model,
            problem.optimizer,
            track,
            current,
            chunks,
            scales,
            comparator,
            rates,
            jnp.asarray(steps),
        )
        trace = np.concatenate([trace, np.asarray(piece, np.float64)[:, :steps]], axis=1)
        if retry and not _descends(trace, float(rates.step), float(jnp.finfo(problem.dtype).eps)):
            return None
        tools.checkpoint_inner("descent", _stored(current, trace, float(rates.step), halvings))
        figures = {
            "loss": float(trace[0, -1]),
            "margin": float(trace[4, -1]),
            "accuracy": float(trace[5, -1]),
        }
        tools.progress.update(steps, **figures)
        if tools.out_of_time and trace.shape[1] < problem.max_steps:
            said = f"the time limit is up after {trace.shape[1]} of {problem.max_steps} steps"
            raise Stop("BUDGET_SPENT", {"error": said, **figures}, with_weights(state, current.weights))
    distances = None
    if track:
        distances = np.asarray(current.distances, np.float64).reshape(-1)[: len(problem.x)]
    return Weights(*map(np.asarray, current.weights)), trace, distances


def _descends(trace: np.ndarray, step: float, eps: float) -> bool:
    loss, gain = trace[0], step * trace[1] / 2
    slack = ROUNDING_UNITS * eps * (loss[:-1] + gain[:-1])
    return bool(np.all(np.isfinite(loss)) and np.all(loss[1:] - loss[:-1] + gain[:-1] <= slack))


def _stored(current: State, trace: np.ndarray, step: float, halvings: int) -> dict[str, Any]:
    moments = None if current.moments is None else [np.asarray(v) for pair in current.moments for v in pair]
    return {
        "u": np.asarray(current.weights.u),
        "w": np.asarray(current.weights.w),
        "moments": moments,
        "distances": np.asarray(current.distances),
        "count": int(current.count),
        "trace": trace,
        "step": step,
        "halvings": halvings,
    }


def _restore(saved: dict[str, Any]) -> State:
    moments = saved["moments"]
    if moments is not None:
        first, second = Weights(*map(jnp.asarray, moments[:2])), Weights(*map(jnp.asarray, moments[2:]))
        moments = (first, second)
    weights = Weights(jnp.asarray(saved["u"]), jnp.asarray(saved["w"]))
    return State(weights, moments, jnp.asarray(saved["distances"]), jnp.asarray(saved["count"], jnp.int32))


def _first_distances(problem: Problem, chunks: Chunks, track: bool) -> Any:
    eta = first_step_size(problem.config.init_scale, problem.num_heads)
    first = first_distance(problem.init, eta, problem.rows, problem.radius, len(problem.x))
    return jnp.full(chunks.y.shape if track else (), min(first, DIVERGED), problem.dtype)


def replay_phase(problem: Problem, state: TrainState, tools: Tools) -> tuple[TrainState, dict]:
    """Leave-one-out runs of a random subset of examples."""
    num = min(problem.config.replays, len(problem.x))
    if num == 0 or problem.optimizer != "gd":
        return state, {}
    chosen = np.sort(tools.rng("replay").permutation(len(problem.x))[:num])
    rng = tools.rng("initialize")
    return state, replay_runs(problem, state, chosen, rng, _rates(problem, state.step), tools)


def _rates(problem: Problem, step: float) -> Rates:
    numbers = (step, problem.radius, problem.num_heads)
    return Rates(*(jnp.asarray(value, problem.dtype) for value in numbers))


def _data(problem: Problem) -> tuple[Chunks, Any]:
    chunks = to_device(cut(problem.x, problem.y, problem.num_heads))
    return chunks, equal_scales(problem.num_heads, problem.dtype)


PHASES = [
    ("initialize", initialize_phase),
    ("compare", compare_phase),
    ("descend", descend_phase),
    ("replay", replay_phase),
]
