"""The plain model in a layout for hundreds of heads: heads are the last axis of every array.

The heads of many runs over the same tokens stand side by side, and every product and every sum is as wide as there
are heads, however few tokens and coordinates there are: `_model.py` vectorises over read-out positions instead, of
which a small problem has four. The operations are the same. The queries of an example are repeated for each of its
keys, c (T-1) T d numbers, few against the c (T-1) d H of one product.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float

from attnlearn._jax import jnp
from attnlearn.training._model import Array, AttentionModel, Packed, Weights, attend, differentiate, relative


class WideModel(AttentionModel):
    """Every position is read out, as by the model it stands for.

    >>> WideModel().positions(10)
    10
    """

    def pack(self, weights: Weights) -> Packed:
        """Read-outs as (d, positions, H), scores as (d, d, H) with the key side first."""
        return weights.u.transpose(2, 1, 0), weights.w.transpose(2, 1, 0)

    def unpack(self, packed: Packed) -> Weights:
        """Back to (H, positions, d) and (H, d, d)."""
        return Weights(*(part.transpose(2, 1, 0) for part in packed))

    def forward(self, packed: Packed, x: Float[Array, "c k d"]) -> tuple[Array, Any]:
        """Every head's part; saves exponentials of the scores and G, both (c, k - 1, positions x H)."""
        u, w = packed
        (examples, tokens, dim), heads = x.shape, u.shape[2]
        first, keys = relative(x)
        keys = keys.reshape(-1, dim)
        turned = (keys @ w.reshape(dim, -1)).reshape(-1, dim, heads)
        scores = jnp.einsum("ipd,idh->iph", jnp.repeat(x, tokens - 1, axis=0), turned)
        shape = (examples, tokens - 1, tokens * heads)
        g = (keys @ u.reshape(dim, -1)).reshape(shape)
        r, saved = attend(scores.reshape(shape), g)
        return r.reshape(examples, tokens, heads).sum(axis=1) + first @ u.sum(axis=1), saved

    def backward(self, saved: Any, x: Float[Array, "c k d"], coefficients: Float[Array, "c h"]) -> Packed:
        """Sums over the chunk."""
        (examples, tokens, dim), heads = x.shape, saved[0].shape[2] // x.shape[1]
        coefficients = jnp.broadcast_to(coefficients, (examples, heads))
        first, keys = relative(x)
        keys = keys.reshape(-1, dim).T
        # a concatenation is copied; a broadcast to a joint axis would be fused, and divide for every index
        attention, j = differentiate(saved, jnp.concatenate([coefficients] * tokens, axis=1))
        gradient_u = (keys @ attention.reshape(-1, tokens * heads)).reshape(dim, tokens, heads)
        queries = jnp.repeat(x.transpose(0, 2, 1), tokens - 1, axis=0)
        p = jnp.einsum("idp,iph->idh", queries, j.reshape(-1, tokens, heads))
        gradient_w = (keys @ p.reshape(-1, dim * heads)).reshape(dim, dim, heads)
        return gradient_u + (first.T @ coefficients)[:, None], gradient_w
