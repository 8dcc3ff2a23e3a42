"""The model: a protocol (value, gradient, beta1, beta2) and multi-head attention in closed form.

    Phi(X; U, W) = sum_h s_h <U_h, A_h X>,   A_h = softmax(X W_h X^T),   s_h = 1 / sqrt H

With G_h = U_h X^T, r = row sums of A*G and J_h = A_h * (G_h - r):  dPhi/dU_h = s_h A_h X and
dPhi/dW_h = s_h X^T J_h X. Value and gradient of a chunk cost 4 c T H d^2 + 8 c H T^2 d operations in six
matrix products; no product is larger than the chunk, nothing of a chunk is kept. Arrays run in the order
(example, key, query x head): all but two products are single large ones without a transpose, and sums over
keys vectorise over queries and heads. The scales s_h are an argument, so that runs with different numbers of
heads can share one compiled loop (a scale of 0 is a head that is not there).
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
        """Values Phi (c,) of a chunk, and what `backward` needs."""
        ...

    def backward(self, saved: Any, x: Array, coefficients: Array) -> tuple[Array, Array]:
        """Packed gradient of sum_i coefficients_i Phi_i."""
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
        """Read-outs as (d, positions x H), scores as (d, H x d)."""
        heads, positions, dim = weights.u.shape
        u = (weights.u * scales[:, None, None]).transpose(2, 1, 0).reshape(dim, positions * heads)
        return u, weights.w.transpose(1, 0, 2).reshape(dim, heads * dim)

    def forward(self, packed: tuple[Array, Array], x: Float[Array, "c k d"]) -> tuple[Array, Any]:
        """Phi of each example; saves attention and its score derivative, both (c, k, positions x H)."""
        u, w = packed
        examples, tokens, dim = x.shape
        q = (self.queries(x).reshape(-1, dim) @ w).reshape(examples, -1, dim)
        g = (x.reshape(-1, dim) @ u).reshape(examples, tokens, -1)
        attention = jax.nn.softmax(jnp.einsum("cbd,ckd->cbk", x, q), axis=1)
        r = (attention * g).sum(axis=1, keepdims=True)
        return r.sum(axis=(1, 2)), (attention, attention * (g - r))

    def backward(
        self, saved: Any, x: Float[Array, "c k d"], coefficients: Float[Array, "c"]
    ) -> tuple[Array, Array]:
        """Sums over the chunk; the coefficients scale the thin factor of each product."""
        attention, j = saved
        dim = x.shape[-1]
        weighted = x * coefficients[:, None, None]
        gradient_u = weighted.reshape(-1, dim).T @ attention.reshape(-1, attention.shape[-1])
        p = jnp.einsum("cbk,cbd->ckd", j, x)
        queries = self.queries(weighted)
        gradient_w = queries.reshape(-1, dim).T @ p.reshape(queries.shape[0] * queries.shape[1], -1)
        return gradient_u, gradient_w

    def unpack(self, gradient: tuple[Array, Array], scales: Array) -> Weights:
        """Back to (H, positions, d) and (H, d, d)."""
        gradient_u, gradient_w = gradient
        heads, dim = scales.shape[0], gradient_u.shape[0]
        u = gradient_u.reshape(dim, -1, heads).transpose(2, 1, 0) * scales[:, None, None]
        return Weights(u, gradient_w.reshape(dim, heads, dim).transpose(1, 0, 2))

    def beta1(self, tokens: int, radius: Any, norm: Any) -> Any:
        """See `_bounds.beta1`."""
        return _bounds.beta1(self.positions(tokens), radius, norm)

    def beta2(self, tokens: int, radius: Any, norm: Any) -> Any:
        """See `_bounds.beta2`."""
        return _bounds.beta2(self.positions(tokens), radius, norm)


def equal_scales(num_heads: int, dtype: Any) -> Array:
    """The scales of a plain model, 1 / sqrt(H) for every head."""
    return jnp.full((num_heads,), num_heads**-0.5, dtype)
