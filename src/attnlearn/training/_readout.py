"""A variation of the model: the read-out looks at one token's attention row only.

    Phi(X; U, W) = (1/sqrt H) sum_h <u_h, X^T softmax(X W_h^T x_t)>,   t fixed, u_h in R^d

as a transformer with a class token does. Everything follows from the full model with one query position
instead of T: the bounds with T replaced by 1 (the factor sqrt T in beta1 and beta2 counts read-out rows), and the
products in the other order, because one query meets W_h more cheaply than T - 1 keys do: 4 c H d^2 + 8 c H (T-1) d
operations for value and gradient. A model is thus one small class; trainer, tangent kernel, certificate and plan
take it as they take the full one.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float

from attnlearn._errors import require
from attnlearn._jax import jax, jnp
from attnlearn.training._model import AttentionModel, fill


@dataclass(frozen=True)
class ReadoutModel(AttentionModel):
    """Attention read out at the token `position` (negative counts from the end).

    >>> ReadoutModel(position=-1).positions(10)
    1
    """

    position: int = 0

    def positions(self, tokens: int) -> int:
        """One, if the token is there."""
        there = isinstance(self.position, int) and -tokens <= self.position < tokens
        require(there, "position", f"must be an integer from {-tokens} to {tokens - 1}", self.position)
        return 1

    def queries(self, x: Float[jax.Array, "c k d"]) -> Float[jax.Array, "c 1 d"]:
        """The token that asks."""
        index = self.position % x.shape[1]
        return x[:, index : index + 1]

    def scores(
        self,
        w: Float[jax.Array, "d h e"],
        keys: Float[jax.Array, "c l d"],
        queries: Float[jax.Array, "c 1 d"],
    ) -> Float[jax.Array, "c l h"]:
        """The query meets every W_h, then the keys of its example."""
        dim, heads, filled = w.shape
        turned = fill(queries)[:, 0] @ w.reshape(-1, filled).T
        return keys @ turned.reshape(-1, dim, heads)

    def score_gradient(
        self,
        j: Float[jax.Array, "c l h"],
        keys: Float[jax.Array, "c l d"],
        queries: Float[jax.Array, "c 1 d"],
    ) -> Float[jax.Array, "d h e"]:
        """The products of `scores` backwards."""
        examples, _, dim = keys.shape
        p = jnp.einsum("cld,clh->cdh", keys, j)
        return (p.reshape(examples, -1).T @ fill(queries)[:, 0]).reshape(dim, j.shape[2], -1)
