"""Logistic loss and gradient over all examples, one chunk at a time.

    L = sum_j weight_j log(1 + exp(-y_j Phi_j)),   weight_j = 1/n unless told otherwise

The gradient is the model's backward pass with the coefficients s_h weight_j y_j l'_j. The scales s_h are one number for
all heads, or one for each (0: a head that is not there). Runs that share the tokens are evaluated together, as more
heads. As many chunks as there are threads (`side_by_side`) are written into one pass of the loop: nothing joins them
but the sum, so XLA works on them at once. Memory: temporaries and gradient of these chunks, whatever n is. Chunks that
are not full are padded with examples of weight 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._jax import jax, jnp
from attnlearn.engine._threads import own_threads
from attnlearn.training._calibration import CHUNK_ELEMENTS, MOST_SIDE_BY_SIDE
from attnlearn.training._model import Array, Model, Packed, Weights


class Chunks(NamedTuple):
    """Examples cut into equal chunks: x (b, c, k, d), labels and weights (b, c)."""

    x: Any
    y: Any
    weight: Any


class Evaluation(NamedTuple):
    """Loss, its gradient, and the margins y Phi of all chunks (b, c)."""

    loss: Any
    gradient: Any
    margins: Any


def side_by_side() -> int:
    """How many chunks XLA works on at once: the threads it has, as far as more of them pay.

    >>> side_by_side() >= 1
    True
    """
    return min(own_threads(), MOST_SIDE_BY_SIDE)


def chunk_shape(num: int, tokens: int, dim: int, num_heads: int) -> tuple[int, int]:
    """How many chunks, and how many examples in each: the temporaries of one stay below CHUNK_ELEMENTS floats.

    For every key and head these are d coordinates of its turned query side and four numbers for each query: score,
    exponential, G and J.

    >>> count, size = chunk_shape(500, 10, 50, 64)
    >>> count % side_by_side(), count * size >= 500, size <= 10
    (0, True, True)
    """
    each = tokens * num_heads * (dim + 4 * tokens)
    count = -(-num // max(1, CHUNK_ELEMENTS // each))
    if count > 1:
        count += -count % side_by_side()
    return count, -(-num // count)


def cut(
    x: Float[np.ndarray, "n k d"],
    y: Float[np.ndarray, "n"],
    num_heads: int,
    weight: Float[np.ndarray, "n"] | None = None,
) -> Chunks:
    """The examples as chunks, padded to a whole number of them."""
    num, tokens, dim = x.shape
    count, size = shape = chunk_shape(num, tokens, dim, num_heads)
    weight = np.full(num, 1 / num, x.dtype) if weight is None else weight
    missing = count * size - num
    if missing:
        x = np.concatenate([x, np.zeros((missing, tokens, dim), x.dtype)])
        y = np.concatenate([y, np.ones(missing, y.dtype)])
        weight = np.concatenate([weight, np.zeros(missing, weight.dtype)])
    return Chunks(x.reshape(*shape, tokens, dim), y.reshape(shape), weight.reshape(shape))


def evaluate(model: Model, weights: Weights, scales: Array, chunks: Chunks) -> Evaluation:
    """Loss, gradient and margins at `weights`; pure JAX, to be traced inside a compiled function."""
    result = evaluate_packed(model, model.pack(weights), scales, chunks)
    return result._replace(gradient=model.unpack(result.gradient))


def evaluate_packed(model: Model, packed: Packed, scales: Array, chunks: Chunks) -> Evaluation:
    """As `evaluate`, with weights and gradient in the layout of the model."""
    one = evaluate_many(model, packed, scales, chunks, runs=1)
    return Evaluation(one.loss[0], one.gradient, one.margins[..., 0])


def evaluate_many(model: Model, packed: Packed, scales: Array, chunks: Chunks, runs: int) -> Evaluation:
    """As `evaluate_packed` for runs that share the tokens, loss (runs,); head h of run r is number h runs + r.

    To the products, `runs` times H heads are only more heads, so one large product serves all runs.
    """

    def one(chunk):
        parts, saved = model.forward(packed, chunk.x)
        margins = chunk.y[:, None] * (parts * scales).reshape(len(parts), -1, runs).sum(axis=1)
        loss = jnp.sum(chunk.weight[:, None] * jax.nn.softplus(-margins), axis=0)
        slopes = -(chunk.weight * chunk.y)[:, None] * jax.nn.sigmoid(-margins)
        coefficients = jnp.concatenate([slopes] * (scales.shape[0] // runs), axis=1) * scales
        return (loss, model.backward(saved, chunk.x, coefficients)), margins

    def several(total, group):
        terms, margins = zip(*(one(Chunks(*chunk)) for chunk in zip(*group, strict=True)), strict=True)
        return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), total, *terms), jnp.stack(margins)

    together = side_by_side() if len(chunks.y) % side_by_side() == 0 else 1
    groups = jax.tree.map(lambda part: part.reshape(-1, together, *part.shape[1:]), chunks)
    zeros = (jnp.zeros((runs,), scales.dtype), jax.tree.map(jnp.zeros_like, packed))
    (loss, gradient), margins = jax.lax.scan(several, zeros, groups)
    return Evaluation(loss, gradient, margins.reshape(*chunks.y.shape, runs))


def values(model: Model, weights: Weights, scales: Array, x: Float[Array, "b c k d"]) -> Float[Array, "b c"]:
    """Phi of every example."""
    packed = model.pack(weights)
    return jax.lax.map(lambda chunk: (model.forward(packed, chunk)[0] * scales).sum(axis=1), x)
