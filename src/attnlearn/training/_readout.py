"""A variation of the model: the read-out looks at one token's attention row only.

    Phi(X; U, W) = (1/sqrt H) sum_h <u_h, X^T softmax(X W_h^T x_t)>,   t fixed, u_h in R^d

as a transformer with a class token does. Everything follows from the full model with one query position
instead of T: the same products on fewer rows, and the same bounds with T replaced by 1 (the factor sqrt T in
beta1 and beta2 counts read-out rows). A model is thus one small class; trainer, tangent kernel, certificate
and plan take it as they take the full one.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Float

from attnlearn.training._model import AttentionModel


@dataclass(frozen=True)
class ReadoutModel(AttentionModel):
    """Attention read out at the token `position` (negative counts from the end).

    >>> ReadoutModel(position=-1).positions(10)
    1
    """

    position: int = 0

    def positions(self, tokens: int) -> int:
        """One."""
        return 1

    def queries(self, x: Float[jax.Array, "c k d"]) -> Float[jax.Array, "c 1 d"]:
        """The token that asks."""
        index = self.position % x.shape[1]
        return x[:, index : index + 1]
