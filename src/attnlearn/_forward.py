"""The forward map of a layer on one chunk of examples as pure JAX, for what differentiates or compiles it.

F(X) = sum_i softmax(X Theta_i X^T + 1 (X c_i)^T) X W_i + b. Its values alone come from `_attention`, in NumPy.
"""

from __future__ import annotations

from attnlearn._attention import Parameters
from attnlearn._jax import jax, jnp


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


def attention_forward(params: Parameters, x: jax.Array, causal: bool) -> jax.Array:
    """Outputs (n, k, o) of one chunk without padding."""
    n, k, d = x.shape
    m, _, o = params.w.shape
    mixed = mixed_rows(pattern_rows(params.theta, params.query_bias, x, None, causal), x)
    outputs = (mixed.reshape(n * k, m * d) @ params.w.reshape(m * d, o)).reshape(n, k, o)
    return outputs if params.output_bias is None else outputs + params.output_bias
