"""Tokens with independent fair ±1 coordinates: identity covariance, and the setting of the theorems.

Cost: one random bit per value, turned into eight floats at a time by a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn.data._base import BlockModel

_SIGNS = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
"""Row b holds the eight signs that the bits of byte b stand for."""


class Boolean(BlockModel):
    """Sequences of `tokens` vectors, uniform on {-1, 1}^dim.

    >>> Boolean(tokens=2, dim=3).sample(1, seed=1).tolist()
    [[[-1.0, -1.0, 1.0], [1.0, -1.0, 1.0]]]
    """

    _tag = 1

    def __init__(self, tokens: int, dim: int, *, dtype: Any = np.float64) -> None:
        super().__init__(tokens, dim, dtype)

    def _draw(self, rng: np.random.Generator, num: int) -> tuple[np.ndarray, ...]:
        values = num * self.tokens * self.dim
        words = rng.integers(0, 2**64, size=-(-values // 64), dtype=np.uint64, endpoint=False)
        signs = _SIGNS[words.astype("<u8").view(np.uint8)].reshape(-1)
        return (signs[:values].reshape(num, self.tokens, self.dim),)

    def __repr__(self) -> str:
        return f"Boolean(tokens={self.tokens}, dim={self.dim}, dtype={self.dtype})"
