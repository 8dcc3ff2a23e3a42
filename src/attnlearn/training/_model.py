"""The model: a protocol (value, gradient, beta1, beta2) and multi-head attention in closed form.

    Phi(X; U, W) = sum_h s_h <U_h, A_h X>,   A_h = softmax(X W_h X^T),   s_h = 1 / sqrt H

With G_h = U_h X^T, r = row sums of A*G and J_h = A_h * (G_h - r):  dPhi/dU_h = s_h A_h X and
dPhi/dW_h = s_h X^T J_h X. Softmax does not see a constant added to a row, and the rows of J_h sum to 0: keys count
relative to the first token, whose score is 0, so every product has T - 1 keys instead of T. Value and gradient of a
chunk cost 4 c (T-1) H d^2 + 8 c H T (T-1) d operations in six matrix products; nothing of a chunk is kept. Arrays run
in the order (example, key, head x query): the scores come out, and J_h goes in, as contiguous factors without a
transpose, and sums over keys vectorise over heads and queries. A run keeps its weights in this layout from step to
step; it only reorders them, so norms and inner products are those of the weights. The scales s_h are applied outside
(`_loss.py`), so that runs with different numbers of heads can share one compiled loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jaxtyping import Float

from attnlearn._jax import jax, jnp
from attnlearn.training import _bounds
from attnlearn.training._calibration import QUERY_MULTIPLE

Array = jax.Array
Packed = tuple[Array, Array]


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

    def pack(self, weights: Weights) -> Packed:
        """The weights in the layout of `forward`: reordered, and filled with zeros if need be."""
        ...

    def forward(self, packed: Packed, x: Array) -> tuple[Array, Any]:
        """<U_h, A_h X> of every example and head (c, H), and what `backward` needs."""
        ...

    def backward(self, saved: Any, x: Array, coefficients: Array) -> Packed:
        """Gradient of sum_ih coefficients_ih <U_h, A_ih X_i>; coefficients (c, 1) hold for every head."""
        ...

    def unpack(self, packed: Packed) -> Weights:
        """The inverse of `pack`."""
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

    def pack(self, weights: Weights) -> Packed:
        """Read-outs as (d, H, positions), scores as (d, H, d) with the key side first, the query side filled up."""
        return weights.u.transpose(2, 0, 1), fill(weights.w.transpose(2, 0, 1))

    def forward(self, packed: Packed, x: Float[Array, "c k d"]) -> tuple[Array, Any]:
        """Every head's part; saves exponentials of the scores and G, both (c, k - 1, H x positions)."""
        u, w = packed
        first, keys = relative(x)
        scores = self.scores(w, keys, self.queries(x))
        g = (keys.reshape(-1, len(u)) @ u.reshape(len(u), -1)).reshape(scores.shape)
        r, saved = attend(scores, g)
        return r.reshape(len(x), *u.shape[1:]).sum(axis=2) + first @ u.sum(axis=2), saved

    def backward(self, saved: Any, x: Float[Array, "c k d"], coefficients: Float[Array, "c h"]) -> Packed:
        """Sums over the chunk; coefficients that all heads share scale the keys, which are fewer numbers."""
        first, keys = relative(x)
        queries = self.queries(x)
        positions = queries.shape[1]
        of_first = (first.T @ coefficients)[:, :, None]
        if coefficients.shape[1] == 1:
            keys = keys * coefficients[:, :, None]
            attention, j = differentiate(saved, 1)
        else:
            attention, j = differentiate(saved, jnp.repeat(coefficients, positions, axis=1))
        of_others = keys.reshape(-1, x.shape[-1]).T @ attention.reshape(-1, attention.shape[-1])
        gradient_u = of_others.reshape(x.shape[-1], -1, positions) + of_first
        return gradient_u, self.score_gradient(j, keys, queries)

    def scores(
        self, w: Float[Array, "d h e"], keys: Float[Array, "c l d"], queries: Float[Array, "c p d"]
    ) -> Float[Array, "c l hp"]:
        """<query, W_h key>: one large product with all keys, then a small one for each example."""
        (examples, others, dim), (_, heads, filled) = keys.shape, w.shape
        turned = (keys.reshape(-1, dim) @ w.reshape(dim, -1)).reshape(examples, others * heads, filled)
        scores = jnp.einsum("cie,cpe->cip", turned, fill(queries))
        return scores.reshape(examples, others, heads * queries.shape[1])

    def score_gradient(
        self, j: Float[Array, "c l hp"], keys: Float[Array, "c l d"], queries: Float[Array, "c p d"]
    ) -> Float[Array, "d h e"]:
        """sum_c keys^T J queries in the layout of the packed scores, the products of `scores` backwards."""
        (examples, others, dim), positions = keys.shape, queries.shape[1]
        heads = j.shape[2] // positions
        queries = fill(queries)
        p = jnp.einsum("cip,cpe->cie", j.reshape(examples, others * heads, positions), queries)
        gradient = keys.reshape(-1, dim).T @ p.reshape(examples * others, heads * queries.shape[2])
        return gradient.reshape(dim, heads, queries.shape[2])

    def unpack(self, packed: Packed) -> Weights:
        """Back to (H, positions, d) and (H, d, d)."""
        u, w = packed
        return Weights(u.transpose(1, 2, 0), w[:, :, : len(w)].transpose(1, 2, 0))

    def beta1(self, tokens: int, radius: Any, norm: Any) -> Any:
        """See `_bounds.beta1`."""
        return _bounds.beta1(self.positions(tokens), radius, norm)

    def beta2(self, tokens: int, radius: Any, norm: Any) -> Any:
        """See `_bounds.beta2`."""
        return _bounds.beta2(self.positions(tokens), radius, norm)


def relative(x: Float[Array, "c k d"]) -> tuple[Float[Array, "c d"], Float[Array, "c l d"]]:
    """The first token, and the others relative to it."""
    return x[:, 0], x[:, 1:] - x[:, :1]


def attend(scores: Float[Array, "c l m"], g: Float[Array, "c l m"]) -> tuple[Float[Array, "c m"], Any]:
    """r from scores and G relative to the first token, whose score and G are 0; and what `differentiate` needs."""
    top = scores.max(axis=1, initial=0.0)
    exponentials = jnp.exp(scores - top[:, None])
    inverse = 1 / (exponentials.sum(axis=1) + jnp.exp(-top))
    r = (exponentials * g).sum(axis=1) * inverse
    return r, (exponentials, inverse, g, r)


def differentiate(saved: Any, factor: Any) -> tuple[Float[Array, "c l m"], Float[Array, "c l m"]]:
    """Attention and J, both times `factor` (c, m)."""
    exponentials, inverse, g, r = saved
    attention = exponentials * (inverse * factor)[:, None]
    return attention, attention * (g - r[:, None])


def fill(array: Float[Array, "*axes d"]) -> Float[Array, "*axes e"]:
    """The last axis filled with zeros to a multiple of QUERY_MULTIPLE; see there."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % QUERY_MULTIPLE)])


def equal_scales(num_heads: int, dtype: Any) -> Float[Array, "1"]:
    """The scales of a plain model: 1 / sqrt(H), the same for every head."""
    return jnp.full((1,), num_heads**-0.5, dtype)
