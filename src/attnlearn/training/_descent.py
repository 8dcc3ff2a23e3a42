"""Full-batch descent in one compiled loop: gradient descent, normalized, Polyak and decaying steps, Adam.

    gd          theta - eta grad L                       the method of the theorems
    normalized  theta - eta grad L / ‖grad L‖
    polyak      theta - min(eta, L / ‖grad L‖^2) grad L   (the infimum of the logistic loss is 0)
    decaying    theta - eta grad L / sqrt(k + 1)          at step k = 0, 1, ...
    adam        for comparison

Every step leaves its evidence: loss, squared gradient norm, <grad L, theta - theta*> against the comparator,
max_h ‖U_h‖, smallest margin, accuracy and mean |l'|. With `track` the leave-one-out recursion runs along
(`_leave_one_out.py`). The loop runs SEGMENT_STEPS steps a call without Python; the number of steps is an
argument, so a shorter last call needs no new compilation, and a resumed run repeats the same calls.
Cost: one evaluation a step. What can fail: too large a step makes the weights infinite; the caller sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._jax import jax, jnp
from attnlearn.training._calibration import ADAM, CONCURRENT, SEGMENT_STEPS
from attnlearn.training._leave_one_out import advance_distances
from attnlearn.training._loss import Chunks, Evaluation, evaluate_many, evaluate_packed
from attnlearn.training._model import Array, Model, Packed, Weights

OPTIMIZERS = ("gd", "normalized", "polyak", "decaying", "adam")


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
    """What many runs at once record: (steps, runs) each."""

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


def dot(a: Any, b: Any) -> Array:
    """Inner product of two parameter vectors, in whatever layout."""
    return jnp.sum(a[0] * b[0]) + jnp.sum(a[1] * b[1])


def away(packed: Packed, star: Packed, gradient: Packed) -> Array:
    """<gradient, packed - star>."""
    return dot(gradient, jax.tree.map(jnp.subtract, packed, star))


def head_norm(weights: Weights) -> Array:
    """max_h ‖U_h‖_F."""
    return jnp.sqrt(jnp.max(jnp.sum(weights.u**2, axis=(1, 2))))


def evidence(
    model: Model, evaluation: Evaluation, packed: Packed, gradient_sq: Array, inner: Array, chunks: Chunks
) -> Trace:
    """The entry of the trace at the weights `packed`; `inner` is <grad L, theta - theta*>."""
    present = chunks.weight > 0
    count = jnp.maximum(present.sum(), 1)
    slopes = jax.nn.sigmoid(-evaluation.margins)
    return Trace(
        loss=evaluation.loss,
        gradient_sq=gradient_sq,
        inner=inner,
        norm=head_norm(model.unpack(packed)),
        margin=jnp.min(jnp.where(present, evaluation.margins, jnp.inf)),
        accuracy=jnp.sum(jnp.where(present, evaluation.margins > 0, False)) / count,
        slope=jnp.sum(chunks.weight * slopes),
    )


def _stride(optimizer: str, step: Array, loss: Array, gradient_sq: Array, count: Array) -> Array:
    """What the direction is multiplied by after `count` steps: one number, or one for each run."""
    safe = jnp.maximum(gradient_sq, jnp.finfo(step.dtype).tiny)
    if optimizer == "normalized":
        return step / jnp.sqrt(safe)
    if optimizer == "decaying":
        return step / jnp.sqrt(1 + count).astype(step.dtype)
    return jnp.minimum(step, loss / safe) if optimizer == "polyak" else step


def _adam(moments: Any, gradient: Any, count: Array, dtype: Any) -> tuple[Any, Any]:
    """Adam's moments after this gradient, and its direction."""
    first, second, tiny = ADAM
    m = jax.tree.map(lambda m, g: first * m + (1 - first) * g, moments[0], gradient)
    v = jax.tree.map(lambda v, g: second * v + (1 - second) * g**2, moments[1], gradient)
    time = count.astype(dtype)
    scaled = jax.tree.map(
        lambda m, v: m / (1 - first**time) / (jnp.sqrt(v / (1 - second**time)) + tiny), m, v
    )
    return (m, v), scaled


def _update(state: State, optimizer: str, gradient: Any, stride: Array) -> State:
    count = state.count + 1
    moments = state.moments
    if optimizer == "adam":
        moments, gradient = _adam(moments, gradient, count, stride.dtype)
    weights = jax.tree.map(lambda p, g: p - stride * g, state.weights, gradient)
    return State(weights, moments, state.distances, count)


def _convert(state: State, change: Callable[[Any], Any]) -> State:
    """The state with its weights and moments in another layout."""
    moments = None if state.moments is None else (change(state.moments[0]), change(state.moments[1]))
    return state._replace(weights=change(state.weights), moments=moments)


@partial(jax.jit, static_argnames=("model", "optimizer", "track"), compiler_options=CONCURRENT)
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
    star = model.pack(comparator)

    def body(index, carry):
        state, trace = carry
        result = evaluate_packed(model, state.weights, scales, chunks)
        gradient_sq = dot(result.gradient, result.gradient)
        stride = _stride(optimizer, rates.step, result.loss, gradient_sq, state.count)
        moved = _update(state, optimizer, result.gradient, stride)
        if optimizer == "adam":
            inner = away(state.weights, star, result.gradient)
        else:  # theta = next + stride grad L; where nothing reads theta itself, XLA need not copy it at every step
            inner = away(moved.weights, star, result.gradient) + stride * gradient_sq
        entry = evidence(model, result, state.weights, gradient_sq, inner, chunks)
        if track:
            distances = advance_distances(model, state.distances, result.margins, entry, chunks, rates)
            moved = moved._replace(distances=distances)
        trace = jax.tree.map(lambda all, one: all.at[index].set(one.astype(all.dtype)), trace, entry)
        return moved, trace

    empty = jnp.full((SEGMENT_STEPS,), jnp.nan, scales.dtype)
    trace = Trace(*(empty for _ in Trace._fields))
    packed, trace = jax.lax.fori_loop(0, steps, body, (_convert(state, model.pack), trace))
    return _convert(packed, model.unpack), trace


@partial(jax.jit, static_argnames=("model", "optimizer"), compiler_options=CONCURRENT)
def advance_many(
    model: Model,
    optimizer: str,
    states: State,
    chunks: Chunks,
    scales: Float[Array, "runs h"],
    step: Array,
    steps: Array,
) -> tuple[State, Curves]:
    """As `advance` for runs that share the tokens and the step; weights and moments have a leading axis of runs.

    The runs may differ in start and number of heads (scales of 0). Only what a sweep shows is recorded.
    """
    runs, heads = scales.shape
    present = chunks.weight[..., None] > 0

    def together(weights):  # runs are the faster axis: sums over a run's heads add whole rows
        return model.pack(
            jax.tree.map(lambda part: part.swapaxes(0, 1).reshape(-1, *part.shape[2:]), weights)
        )

    def apart(packed):
        split = jax.tree.map(lambda part: part.reshape(heads, runs, *part.shape[1:]), model.unpack(packed))
        return jax.tree.map(lambda part: part.swapaxes(0, 1), split)

    def body(index, carry):
        states, curves = carry
        result = evaluate_many(model, states.weights, scales.T.reshape(-1), chunks, runs)
        entry = Curves(
            loss=result.loss,
            margin=jnp.min(jnp.where(present, result.margins, jnp.inf), axis=(0, 1)),
            accuracy=jnp.sum(present & (result.margins > 0), axis=(0, 1)) / jnp.maximum(present.sum(), 1),
        )
        curves = jax.tree.map(lambda all, one: all.at[index].set(one.astype(all.dtype)), curves, entry)
        gradient, stride = result.gradient, step
        if optimizer in ("normalized", "polyak"):  # a stride for each run
            single = apart(gradient)
            strides = _stride(optimizer, step, entry.loss, jax.vmap(dot)(single, single), states.count)
            gradient = together(
                jax.vmap(lambda g, s: jax.tree.map(lambda part: s * part, g))(single, strides)
            )
            stride = jnp.ones_like(step)
        elif optimizer == "decaying":
            stride = _stride(optimizer, step, entry.loss, entry.loss, states.count)
        return _update(states, optimizer, gradient, stride), curves

    empty = jnp.full((SEGMENT_STEPS, runs), jnp.nan, scales.dtype)
    curves = Curves(empty, empty, empty)
    packed, curves = jax.lax.fori_loop(0, steps, body, (_convert(states, together), curves))
    return _convert(packed, apart), curves


@partial(jax.jit, static_argnames=("model",))
def finish(
    model: Model, weights: Weights, chunks: Chunks, scales: Array, comparator: Weights
) -> tuple[Trace, Array, Weights]:
    """Evidence, margins and gradient at the last iterate."""
    packed = model.pack(weights)
    result = evaluate_packed(model, packed, scales, chunks)
    gradient_sq = dot(result.gradient, result.gradient)
    inner = away(packed, model.pack(comparator), result.gradient)
    entry = evidence(model, result, packed, gradient_sq, inner, chunks)
    return entry, result.margins, model.unpack(result.gradient)
