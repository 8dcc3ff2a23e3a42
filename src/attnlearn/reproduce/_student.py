"""A student of the right shape trained by Adam: what one does without any of the theory.

Factors Wq, Wk, Wv, Wo of a given rank, or Theta and W themselves when the rank is not told, with biases; batch 256,
cosine schedule from a rate to zero; the number of heads and the causal mask are given to it. Steps run in compiled
blocks, and between blocks the error on fresh examples is looked at, so that a run ends when it reaches its target. The
benchmarks' rival and `reproduce hardness` share this one loop.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from attnlearn import AttentionLayer
from attnlearn._attention import Parameters
from attnlearn._forward import attention_forward
from attnlearn._jax import jax, jnp

BATCH = 256
BLOCK = 250


def train_once(
    truth, rank, seed, tokens, outputs, held, answer, rate, length, target, max_seconds
) -> dict[str, Any]:
    """One run of the given rate and length: the error on `held` tokens, whose outputs are `answer`."""
    params = start(truth, rank, seed, tokens.dtype)
    moments = zeros(params)
    spread = np.linalg.norm(answer - answer.mean(axis=(0, 1)))
    began, error, step = time.perf_counter(), np.inf, 0
    while step < length:
        key = jax.random.fold_in(jax.random.key(seed), step)
        params, moments = block(params, moments, step, tokens, outputs, truth.causal, key, rate, length)
        step += BLOCK
        error = float(np.linalg.norm(np.asarray(student(params, held, truth.causal)) - answer) / spread)
        if not np.isfinite(error) or error <= target or time.perf_counter() - began > max_seconds:
            break
    seconds = time.perf_counter() - began
    error = error if np.isfinite(error) else 1e300
    return {
        "rate": rate,
        "length": length,
        "steps": step,
        "seconds": seconds,
        "error": error,
        "reached": error <= target,
    }


def start(truth: AttentionLayer, rank: int | None, seed: int, dtype: Any) -> dict[str, jax.Array]:
    """The usual initialization: every factor normal with variance one over its inputs; Theta like a product of two."""
    m, d, o = truth.w.shape
    rng = np.random.default_rng([seed, 0xADA])
    shapes = {"query": (m, d, rank), "key": (m, d, rank), "value": (m, d, rank), "output": (m, rank, o)}
    if rank is None:
        shapes = {"theta": (m, d, d), "w": (m, d, o)}
    params = {name: rng.standard_normal(shape) / np.sqrt(shape[1]) for name, shape in shapes.items()}
    params |= {"query_bias": np.zeros((m, d if rank is None else rank)), "output_bias": np.zeros(o)}
    if rank is None:
        params["theta"] = params["theta"] / np.sqrt(d)
    return {name: jnp.asarray(value, dtype) for name, value in params.items()}


def zeros(params: dict[str, jax.Array]) -> tuple[Any, Any]:
    """Adam's moments before the first step."""
    return jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)


@partial(jax.jit, static_argnums=2)
def student(params: dict[str, jax.Array], x: jax.Array, causal: bool) -> jax.Array:
    """The student's outputs."""
    if "theta" in params:
        layer = Parameters(params["theta"], params["w"], params["query_bias"], params["output_bias"])
        return attention_forward(layer, x, causal)
    queries = jnp.einsum("nad,mdr->nmar", x, params["query"]) + params["query_bias"][:, None]
    keys = jnp.einsum("nbd,mdr->nmbr", x, params["key"])
    scores = jnp.einsum("nmar,nmbr->nmab", queries, keys) / np.sqrt(queries.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    values = jnp.einsum("nbd,mdr->nmbr", x, params["value"])
    mixed = jnp.einsum("nmab,nmbr->nmar", jax.nn.softmax(scores), values)
    return jnp.einsum("nmar,mro->nao", mixed, params["output"]) + params["output_bias"]


@partial(jax.jit, static_argnums=5)
def block(params, moments, first, x, y, causal, key, rate, length):
    """BLOCK steps of Adam (0.9, 0.999, 1e-8) on random batches."""

    def loss(params, rows):
        return jnp.mean((student(params, x[rows], causal) - y[rows]) ** 2)

    def step(carry, number):
        params, (mean, square) = carry
        rows = jax.random.randint(jax.random.fold_in(key, number), (BATCH,), 0, len(x))
        gradient = jax.grad(loss)(params, rows)
        t = first + number + 1
        mean = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, square, gradient)
        size = rate * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(1.0, t / length)))
        size = size * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        params = jax.tree.map(lambda p, a, b: p - size * a / (jnp.sqrt(b) + 1e-8), params, mean, square)
        return (params, (mean, square)), None

    (params, moments), _ = jax.lax.scan(step, (params, moments), jnp.arange(BLOCK))
    return params, moments
