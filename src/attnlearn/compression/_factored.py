"""The unknowns of a small layer: query, key and value factors, with keys and values shared or read from one latent.

Head i has [Theta_i; c_i^T] = query_i key_g^T and W_i = value_g O_i, g its group: the query bias is the last row of query_i, so it is
counted in the rank. With a latent L (d, l) the factors of keys and values are L key_i and L value_i. The O_i and the output
bias are no unknowns: `_projection` eliminates them. Gauge: key_g -> key_g M, query_i -> query_i M^-T, and the same for values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Factored(NamedTuple):
    """query (m, d + 1, r), key and value (h, d or l, r), latent (d, l) or None. Also the shape of their gradients."""

    query: Any
    key: Any
    value: Any
    latent: Any = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.query)

    @property
    def share(self) -> int:
        """How many consecutive heads share a key and a value."""
        return len(self.query) // len(self.key)

    def flat(self) -> np.ndarray:
        """All numbers as one vector."""
        return np.concatenate([part.reshape(-1) for part in self if part is not None])

    def shaped(self, vector: np.ndarray) -> Factored:
        """A vector of `flat` in this shape, sharing its memory."""
        parts, start = [], 0
        for part in self:
            parts.append(None if part is None else vector[start : start + part.size].reshape(part.shape))
            start += 0 if part is None else part.size
        return Factored(*parts)

    def astype(self, dtype: Any) -> Factored:
        """The same numbers in another precision."""
        return Factored(*(None if part is None else np.asarray(part, dtype) for part in self))

    def opened(self) -> Factored:
        """Keys and values as maps of the token itself, without a latent."""
        if self.latent is None:
            return self
        return Factored(self.query, self.latent @ self.key, self.latent @ self.value)

    def closed(self, gradient: Factored) -> Factored:
        """The gradient in these unknowns from that in the opened ones."""
        if self.latent is None:
            return gradient
        through = np.einsum("hdr,hlr->dl", gradient.key, self.key, optimize=True)
        through += np.einsum("hdr,hlr->dl", gradient.value, self.value, optimize=True)
        back = self.latent.T
        return Factored(gradient.query, back @ gradient.key, back @ gradient.value, through)

    def scores(self) -> np.ndarray:
        """[Theta_i; c_i^T] of every head (m, d + 1, d)."""
        keys = np.repeat(self.opened().key, self.share, axis=0)
        return self.query @ np.swapaxes(keys, 1, 2)

    def projections(self, outputs: np.ndarray) -> np.ndarray:
        """W_i = value_g O_i (m, d, o) for outputs O (m r, o)."""
        values = np.repeat(self.opened().value, self.share, axis=0)
        return values @ outputs.reshape(len(values), values.shape[-1], -1)
