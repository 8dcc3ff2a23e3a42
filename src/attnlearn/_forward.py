"""The forward map of a layer on one chunk of examples, as pure JAX, and its evaluation chunk by chunk.

F(X) = sum_i softmax(X Theta_i X^T + 1 (X c_i)^T) X W_i + b. Per chunk of n sequences it costs
O(n k m (d^2 + d d_out + k d)) operations and O(n m k (d + k)) memory, so the number of sequences in a chunk,
not in the batch, sets the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnlearn._precision import precision

CHUNK_BYTES = 64 * 2**20
"""Working memory of one evaluated chunk: large enough for full GEMM speed, small against any machine."""


class Parameters(NamedTuple):
    """The arrays of a layer, in the order in which every function of the package takes them."""

    theta: Any
    w: Any
    query_bias: Any
    output_bias: Any


# Inside, arrays run (sequence, query, head, key): then every product is one GEMM over all rows or one product
# per sequence, and nothing is transposed. XLA's CPU backend is slow on many tiny products.
def score_rows(theta: jax.Array, query_bias: jax.Array | None, x: jax.Array) -> jax.Array:
    """Scores before the softmax, (n, query, heads, key): x_a^T Theta_i x_b + c_i^T x_b."""
    n, k, d = x.shape
    m = theta.shape[0]
    queries = (x.reshape(n * k, d) @ jnp.swapaxes(theta, 0, 1).reshape(d, m * d)).reshape(n, k, m, d)
    if query_bias is not None:
        queries = queries + query_bias
    return jnp.einsum("nqe,nbe->nqb", queries.reshape(n, k * m, d), x).reshape(n, k, m, k)


def allowed_rows(k: int, mask: jax.Array | None, causal: bool) -> jax.Array | None:
    """Which key each query may see, broadcastable to (n, query, 1, key); None when every one."""
    allowed = jnp.tril(jnp.ones((k, k), bool))[None, :, None, :] if causal else None
    if mask is not None:
        keys = mask[:, None, None, :]
        allowed = keys if allowed is None else allowed & keys
    return allowed


def pattern_rows(
    theta: jax.Array, query_bias: jax.Array | None, x: jax.Array, mask: jax.Array | None, causal: bool
) -> jax.Array:
    """Attention weights (n, query, heads, key); rows of padded queries are zero."""
    scores = score_rows(theta, query_bias, x)
    patterns = jax.nn.softmax(scores, axis=-1, where=allowed_rows(x.shape[1], mask, causal))
    return patterns if mask is None else patterns * mask[:, :, None, None]


def mixed_rows(patterns: jax.Array, x: jax.Array) -> jax.Array:
    """Attention-weighted tokens (n, query, heads, d) from weights (n, query, heads, key)."""
    n, k, m, _ = patterns.shape
    return jnp.einsum("nqb,nbd->nqd", patterns.reshape(n, k * m, k), x).reshape(n, k, m, x.shape[-1])


def attention_forward(params: Parameters, x: jax.Array, mask: jax.Array | None, causal: bool) -> jax.Array:
    """Outputs (n, k, o) of one chunk; rows of padded queries are zero."""
    n, k, d = x.shape
    m, _, o = params.w.shape
    mixed = mixed_rows(pattern_rows(params.theta, params.query_bias, x, mask, causal), x)
    outputs = (mixed.reshape(n * k, m * d) @ params.w.reshape(m * d, o)).reshape(n, k, o)
    if params.output_bias is not None:
        outputs = outputs + params.output_bias
    return outputs if mask is None else outputs * mask[..., None]


@cache
def _compiled(kernel: Callable[..., jax.Array], causal: bool) -> Callable[..., jax.Array]:
    return jax.jit(partial(kernel, causal=causal))


def _output_kernel(params, x, mask, causal):
    return attention_forward(params, x, mask, causal)


def _pattern_kernel(params, x, mask, causal):
    return jnp.swapaxes(pattern_rows(params.theta, params.query_bias, x, mask, causal), 1, 2)


def _score_kernel(params, x, mask, causal):
    return jnp.swapaxes(score_rows(params.theta, params.query_bias, x), 1, 2)


KERNELS = {"outputs": _output_kernel, "patterns": _pattern_kernel, "scores": _score_kernel}


def chunk_size(n: int, k: int, d: int, m: int, itemsize: int) -> int:
    """Sequences per chunk, a power of two so that few shapes are ever compiled."""
    per_sequence = 2 * m * k * (k + d) * itemsize
    most = max(1, CHUNK_BYTES // per_sequence)
    return min(1 << (most.bit_length() - 1), 1 << max(0, n - 1).bit_length())


def evaluate(
    kernel: str,
    params: Parameters,
    x: np.ndarray,
    mask: np.ndarray | None,
    causal: bool,
    tail: tuple[int, ...],
) -> np.ndarray:
    """Apply a kernel to x (n, k, d) chunk by chunk; `tail` is the shape of one example's result."""
    n, k, d = x.shape
    size = chunk_size(n, k, d, params.theta.shape[0], x.dtype.itemsize)
    result = np.empty((n, *tail), x.dtype)
    with precision(x.dtype):
        function = _compiled(KERNELS[kernel], causal)
        device_params = jax.tree.map(jnp.asarray, params)
        for start in range(0, n, size):
            rows = slice(start, min(start + size, n))
            chunk_mask = None if mask is None else jnp.asarray(_padded(mask[rows], size))
            chunk = function(device_params, jnp.asarray(_padded(x[rows], size)), chunk_mask)
            result[rows] = np.asarray(chunk)[: rows.stop - rows.start]
    return result


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    """`array` with zero rows appended up to `size`, so that the last chunk needs no compilation."""
    missing = size - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
