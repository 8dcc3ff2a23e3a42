"""Full-batch descent in one compiled loop: gradient descent, normalized and Polyak steps, Adam.

    gd          theta - eta grad L                       the method of the theorems
    normalized  theta - eta grad L / ‖grad L‖
    polyak      theta - min(eta, L / ‖grad L‖^2) grad L   (the infimum of the logistic loss is 0)
    adam        for comparison

Every step leaves its evidence: loss, squared gradient norm, <grad L, theta - theta*> against the comparator,
max_h ‖U_h‖, smallest margin, accuracy and mean |l'|. With `track` the leave-one-out recursion runs along
(`_leave_one_out.py`). The loop runs SEGMENT_STEPS steps a call without Python; the number of steps is an
argument, so a shorter last call needs no new compilation, and a resumed run repeats the same calls.
Cost: one evaluation a step. What can fail: too large a step makes the weights infinite; the caller sees it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnlearn.training._calibration import ADAM, SEGMENT_STEPS
from attnlearn.training._leave_one_out import advance_distances
from attnlearn.training._loss import Chunks, Evaluation, evaluate, evaluate_many
from attnlearn.training._model import Array, Model, Weights

OPTIMIZERS = ("gd", "normalized", "polyak", "adam")


class State(NamedTuple):
    """What the next step needs: weights, Adam's moments (zeros otherwise), recursion distances, steps done."""

    weights: Weights
    moments: tuple[Weights, Weights] | None
    distances: Any
    count: Any


class Rates(NamedTuple):
    """Numbers of a run: the step, the token radius R, and the number of heads as in 1 / sqrt(H)."""

    step: Any
    radius: Any
    num_heads: Any


class Trace(NamedTuple):
    """Evidence at theta_k, one entry a step."""

    loss: Any
    gradient_sq: Any
    inner: Any
    norm: Any
    margin: Any
    accuracy: Any
    slope: Any


class Curves(NamedTuple):
    """What many runs at once record: (runs, steps) each."""

    loss: Any
    margin: Any
    accuracy: Any


def start(optimizer: str, weights: Weights, distances: Any) -> State:
    """The state before the first step."""
    moments = None
    if optimizer == "adam":
        zeros = jax.tree.map(jnp.zeros_like, weights)
        moments = (zeros, zeros)
    return State(weights, moments, distances, np.zeros((), np.int32))


def dot(a: Weights, b: Weights) -> Array:
    """Inner product of two parameter vectors."""
    return jnp.vdot(a.u, b.u) + jnp.vdot(a.w, b.w)


def head_norm(weights: Weights) -> Array:
    """max_h ‖U_h‖_F."""
    return jnp.sqrt(jnp.max(jnp.sum(weights.u**2, axis=(1, 2))))


def evidence(evaluation: Evaluation, weights: Weights, comparator: Weights, chunks: Chunks) -> Trace:
    """The entry of the trace at `weights`."""
    present = chunks.weight > 0
    count = jnp.maximum(present.sum(), 1)
    slopes = jax.nn.sigmoid(-evaluation.margins)
    away = jax.tree.map(jnp.subtract, weights, comparator)
    return Trace(
        loss=evaluation.loss,
        gradient_sq=dot(evaluation.gradient, evaluation.gradient),
        inner=dot(evaluation.gradient, away),
        norm=head_norm(weights),
        margin=jnp.min(jnp.where(present, evaluation.margins, jnp.inf)),
        accuracy=jnp.sum(jnp.where(present, evaluation.margins > 0, False)) / count,
        slope=jnp.sum(chunks.weight * slopes),
    )


def _update(
    optimizer: str, state: State, loss: Array, gradient_sq: Array, gradient: Weights, step: Array
) -> State:
    count = state.count + 1
    moments = state.moments
    if optimizer == "adam":
        first, second, tiny = ADAM
        m = jax.tree.map(lambda m, g: first * m + (1 - first) * g, moments[0], gradient)
        v = jax.tree.map(lambda v, g: second * v + (1 - second) * g**2, moments[1], gradient)
        time = count.astype(step.dtype)
        direction = jax.tree.map(
            lambda m, v: m / (1 - first**time) / (jnp.sqrt(v / (1 - second**time)) + tiny), m, v
        )
        moments = (m, v)
    else:
        direction = gradient
        safe = jnp.maximum(gradient_sq, jnp.finfo(step.dtype).tiny)
        if optimizer == "normalized":
            step = step / jnp.sqrt(safe)
        elif optimizer == "polyak":
            step = jnp.minimum(step, loss / safe)
    weights = jax.tree.map(lambda p, g: p - step * g, state.weights, direction)
    return State(weights, moments, state.distances, count)


@partial(jax.jit, static_argnames=("model", "optimizer", "track"))
def advance(
    model: Model,
    optimizer: str,
    track: bool,
    state: State,
    chunks: Chunks,
    scales: Array,
    comparator: Weights,
    rates: Rates,
    steps: Array,
) -> tuple[State, Trace]:
    """`steps` (at most SEGMENT_STEPS) steps; entries of the trace beyond them are NaN."""

    def body(index, carry):
        state, trace = carry
        result = evaluate(model, state.weights, scales, chunks)
        entry = evidence(result, state.weights, comparator, chunks)
        if track:
            distances = advance_distances(model, state.distances, result.margins, entry, chunks, rates)
            state = state._replace(distances=distances)
        trace = jax.tree.map(lambda all, one: all.at[index].set(one.astype(all.dtype)), trace, entry)
        after = _update(optimizer, state, entry.loss, entry.gradient_sq, result.gradient, rates.step)
        return after, trace

    empty = jnp.full((SEGMENT_STEPS,), jnp.nan, scales.dtype)
    trace = Trace(*(empty for _ in Trace._fields))
    return jax.lax.fori_loop(0, steps, body, (state, trace))


@partial(jax.jit, static_argnames=("model", "optimizer"))
def advance_many(
    model: Model,
    optimizer: str,
    states: State,
    chunks: Chunks,
    scales: Float[Array, "runs h"],
    step: Array,
    steps: Array,
) -> tuple[State, Curves]:
    """As `advance` for runs that share the tokens and the step; the parts of `states` have a leading axis.

    The runs may differ in start and number of heads (scales of 0). Only what a sweep shows is recorded.
    """
    runs = scales.shape[0]
    present = chunks.weight[..., None] > 0

    def body(index, carry):
        states, curves = carry
        heads = jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), states.weights)
        result = evaluate_many(model, heads, scales.reshape(-1), chunks, runs)
        gradient = jax.tree.map(lambda part, like: part.reshape(like.shape), result.gradient, states.weights)
        entry = Curves(
            loss=result.loss,
            margin=jnp.min(jnp.where(present, result.margins, jnp.inf), axis=(0, 1)),
            accuracy=jnp.sum(present & (result.margins > 0), axis=(0, 1)) / jnp.maximum(present.sum(), 1),
        )
        curves = jax.tree.map(lambda all, one: all.at[:, index].set(one.astype(all.dtype)), curves, entry)
        update = jax.vmap(partial(_update, optimizer), in_axes=(0, 0, 0, 0, None))
        return update(states, entry.loss, jax.vmap(dot)(gradient, gradient), gradient, step), curves

    empty = jnp.full((runs, SEGMENT_STEPS), jnp.nan, scales.dtype)
    return jax.lax.fori_loop(0, steps, body, (states, Curves(empty, empty, empty)))


@partial(jax.jit, static_argnames=("model",))
def finish(
    model: Model, weights: Weights, chunks: Chunks, scales: Array, comparator: Weights
) -> tuple[Trace, Array, Weights]:
    """Evidence, margins and gradient at the last iterate."""
    result = evaluate(model, weights, scales, chunks)
    return evidence(result, weights, comparator, chunks), result.margins, result.gradient
