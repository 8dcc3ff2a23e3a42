"""The model: a protocol (value, gradient, beta1, beta2) and multi-head attention in closed form.

    Phi(X; U, W) = sum_h s_h <U_h, A_h X>,   A_h = softmax(X W_h X^T),   s_h = 1 / sqrt H

With G_h = U_h X^T, r = row sums of A*G and J_h = A_h * (G_h - r):  dPhi/dU_h = s_h A_h X and
dPhi/dW_h = s_h X^T J_h X. Softmax does not see a constant added to a row, and the rows of J_h sum to 0: keys count
relative to the first token, whose score is 0, so every product has T - 1 keys instead of T. Value and gradient of a
chunk cost 4 c (T-1) H d^2 + 8 c H T (T-1) d operations in six matrix products; nothing of a chunk is kept. Arrays run
in the order (example, key, head x query): the scores come out, and J_h goes in, as contiguous factors without a
transpose, and sums over keys vectorise over heads and queries. The scales s_h are an argument, so that runs with
different numbers of heads can share one compiled loop (a scale of 0 is a head that is not there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Float

from attnlearn.training import _bounds

Array = jax.Array


class Weights(NamedTuple):
    """Trainable parameters: read-outs `u` (H, positions, d) and score matrices `w` (H, d, d).

    >>> Weights(u=1, w=2).w
    2
    """

    u: Any
    w: Any


class Model(Protocol):
    """What the trainer, the tangent kernel and the certificate need of a model.

    >>> model: Model = AttentionModel()
    >>> model.beta1(tokens=4, radius=1.0, norm=0.0)
    2.0
    """

    def positions(self, tokens: int) -> int:
        """How many query positions are read out: rows of each U_h."""
        ...

    def queries(self, x: Any) -> Any:
        """The tokens (c, positions, d) whose attention rows are read out; slicing only."""
        ...

    def pack(self, weights: Weights, scales: Array) -> tuple[Array, Array]:
        """The weights in the layout of `forward`, once per step."""
        ...

    def forward(self, packed: tuple[Array, Array], x: Array) -> tuple[Array, Any]:
        """What each head adds to Phi (c, H) for the examples of a chunk, and what `backward` needs."""
        ...

    def backward(self, saved: Any, x: Array, coefficients: Array) -> tuple[Array, Array]:
        """Packed gradient of sum_ih coefficients_ih Phi_ih, Phi_ih what head h adds to Phi_i."""
        ...

    def unpack(self, gradient: tuple[Array, Array], scales: Array) -> Weights:
        """A packed gradient as weights."""
        ...

    def beta1(self, tokens: int, radius: Any, norm: Any) -> Any:
        """Bound on the gradient norm of Phi for token norms <= radius and max_h ‖U_h‖ <= norm."""
        ...

    def beta2(self, tokens: int, radius: Any, norm: Any) -> Any:
        """Bound on sqrt(H) times the Hessian norm of Phi, as `beta1`."""
        ...


@dataclass(frozen=True)
class AttentionModel:
    """Every position is read out; `_readout.py` shows the variation with one.

    >>> AttentionModel().positions(10)
    10
    """

    def positions(self, tokens: int) -> int:
        """All of them."""
        return tokens

    def queries(self, x: Float[Array, "c k d"]) -> Float[Array, "c p d"]:
        """The tokens whose attention rows are read out."""
        return x

    def pack(self, weights: Weights, scales: Array) -> tuple[Array, Array]:
        """Read-outs as (d, H x positions), scores as (d, H x d) with the key side first."""
        heads, positions, dim = weights.u.shape
        u = (weights.u * scales[:, None, None]).transpose(2, 0, 1).reshape(dim, heads * positions)
        return u, weights.w.transpose(2, 0, 1).reshape(dim, heads * dim)

    def forward(self, packed: tuple[Array, Array], x: Float[Array, "c k d"]) -> tuple[Array, Any]:
        """Every head's part of Phi; saves attention and its score derivative, both (c, k - 1, H x positions)."""
        u, w = packed
        first, keys = _relative(x)
        queries = self.queries(x)
        scores = self.scores(w, keys, queries)
        g = (keys.reshape(-1, len(u)) @ u).reshape(scores.shape)
        top = scores.max(axis=1, keepdims=True, initial=0.0)  # 0 is the score of the first token
        exponentials = jnp.exp(scores - top)
        attention = exponentials / (exponentials.sum(axis=1, keepdims=True) + jnp.exp(-top))
        r = (attention * g).sum(axis=1, keepdims=True)
        rows = (r[:, 0] + first @ u).reshape(len(x), -1, queries.shape[1])
        return rows.sum(axis=2), (attention, attention * (g - r))

    def backward(
        self, saved: Any, x: Float[Array, "c k d"], coefficients: Float[Array, "c h"]
    ) -> tuple[Array, Array]:
        """Sums over the chunk; a head's coefficient scales its attention, so that all heads share the tokens."""
        attention, j = saved
        first, keys = _relative(x)
        queries = self.queries(x)
        spread = jnp.repeat(coefficients, queries.shape[1], axis=1)[:, None]
        weighted = (attention * spread).reshape(-1, attention.shape[-1])
        gradient_u = keys.reshape(-1, x.shape[-1]).T @ weighted + first.T @ spread[:, 0]
        return gradient_u, self.score_gradient(j * spread, keys, queries)

    def scores(
        self, w: Float[Array, "d hd"], keys: Float[Array, "c l d"], queries: Float[Array, "c p d"]
    ) -> Float[Array, "c l hp"]:
        """<query, W_h key>: one large product with all keys, then a small one for each example."""
        examples, others, dim = keys.shape
        heads = w.shape[1] // dim
        turned = (keys.reshape(-1, dim) @ w).reshape(examples, others * heads, dim)
        scores = jnp.einsum("cid,cpd->cip", turned, queries)
        return scores.reshape(examples, others, heads * queries.shape[1])

    def score_gradient(
        self, j: Float[Array, "c l hp"], keys: Float[Array, "c l d"], queries: Float[Array, "c p d"]
    ) -> Float[Array, "d hd"]:
        """sum_c keys^T J queries in the layout of the packed scores, the products of `scores` backwards."""
        examples, others, dim = keys.shape
        positions = queries.shape[1]
        heads = j.shape[2] // positions
        p = jnp.einsum("cip,cpd->cid", j.reshape(examples, others * heads, positions), queries)
        return keys.reshape(-1, dim).T @ p.reshape(examples * others, heads * dim)

    def unpack(self, gradient: tuple[Array, Array], scales: Array) -> Weights:
        """Back to (H, positions, d) and (H, d, d)."""
        gradient_u, gradient_w = gradient
        heads, dim = scales.shape[0], gradient_u.shape[0]
        u = gradient_u.reshape(dim, heads, -1).transpose(1, 2, 0) * scales[:, None, None]
        return Weights(u, gradient_w.reshape(dim, heads, dim).transpose(1, 2, 0))

    def beta1(self, tokens: int, radius: Any, norm: Any) -> Any:
        """See `_bounds.beta1`."""
        return _bounds.beta1(self.positions(tokens), radius, norm)

    def beta2(self, tokens: int, radius: Any, norm: Any) -> Any:
        """See `_bounds.beta2`."""
        return _bounds.beta2(self.positions(tokens), radius, norm)


def _relative(x: Float[Array, "c k d"]) -> tuple[Float[Array, "c d"], Float[Array, "c l d"]]:
    """The first token, and the others relative to it."""
    return x[:, 0], x[:, 1:] - x[:, :1]


def equal_scales(num_heads: int, dtype: Any) -> Array:
    """The scales of a plain model, 1 / sqrt(H) for every head."""
    return jnp.full((num_heads,), num_heads**-0.5, dtype)
