"""Logistic loss and gradient over all examples, one chunk at a time.

    L = sum_j weight_j log(1 + exp(-y_j Phi_j)),   weight_j = 1/n unless told otherwise

The gradient is the model's backward pass with the coefficients s_h weight_j y_j l'_j. The scales s_h are one number for
all heads, or one for each (0: a head that is not there). Runs that share the tokens are evaluated together, as more
heads. Memory: one chunk's temporaries and one gradient, whatever n is. A last chunk that is not full is padded with
examples of weight 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnlearn.training._calibration import CHUNK_ELEMENTS
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


def chunk_size(num: int, tokens: int, dim: int, num_heads: int) -> int:
    """Examples in a chunk: the largest temporary stays below CHUNK_ELEMENTS, chunks are about equal.

    >>> chunk_size(500, 10, 50, 64), chunk_size(100, 10, 50, 8)
    (15, 100)
    """
    most = max(1, min(num, CHUNK_ELEMENTS // (tokens * num_heads * dim)))
    return -(-num // -(-num // most))


def cut(
    x: Float[np.ndarray, "n k d"],
    y: Float[np.ndarray, "n"],
    num_heads: int,
    weight: Float[np.ndarray, "n"] | None = None,
) -> Chunks:
    """The examples as chunks, padded to a whole number of them."""
    num, tokens, dim = x.shape
    size = chunk_size(num, tokens, dim, num_heads)
    weight = np.full(num, 1 / num, x.dtype) if weight is None else weight
    missing = -num % size
    if missing:
        x = np.concatenate([x, np.zeros((missing, tokens, dim), x.dtype)])
        y = np.concatenate([y, np.ones(missing, y.dtype)])
        weight = np.concatenate([weight, np.zeros(missing, weight.dtype)])
    shape = (len(x) // size, size)
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

    def one(total, chunk):
        parts, saved = model.forward(packed, chunk.x)
        margins = chunk.y[:, None] * (parts * scales).reshape(len(parts), -1, runs).sum(axis=1)
        loss = jnp.sum(chunk.weight[:, None] * jax.nn.softplus(-margins), axis=0)
        slopes = -(chunk.weight * chunk.y)[:, None] * jax.nn.sigmoid(-margins)
        coefficients = jnp.concatenate([slopes] * (scales.shape[0] // runs), axis=1) * scales
        gradient = model.backward(saved, chunk.x, coefficients)
        return jax.tree.map(jnp.add, total, (loss, gradient)), margins

    zeros = (jnp.zeros((runs,), scales.dtype), jax.tree.map(jnp.zeros_like, packed))
    (loss, gradient), margins = jax.lax.scan(one, zeros, chunks)
    return Evaluation(loss, gradient, margins)


def values(model: Model, weights: Weights, scales: Array, x: Float[Array, "b c k d"]) -> Float[Array, "b c"]:
    """Phi of every example."""
    packed = model.pack(weights)
    return jax.lax.map(lambda chunk: (model.forward(packed, chunk)[0] * scales).sum(axis=1), x)
