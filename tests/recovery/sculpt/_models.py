"""Data models that exist only here: sculpting must work on them unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sphere:
    """Tokens uniform on the sphere of radius sqrt(dim)."""

    tokens: int
    dim: int

    def sample(self, num: int, seed: int = 0) -> np.ndarray:
        x = np.random.default_rng(seed).standard_normal((num, self.tokens, self.dim))
        return x * np.sqrt(self.dim) / np.linalg.norm(x, axis=2, keepdims=True)

    def stream(self, num: int, chunk: int, seed: int = 0) -> Iterator[np.ndarray]:
        whole = self.sample(num, seed)
        return (whole[start : start + chunk] for start in range(0, num, chunk))


@dataclass(frozen=True)
class BiasedBits(Sphere):
    """±1 coordinates that are 1 with probability 0.6: the mean is not zero."""

    def sample(self, num: int, seed: int = 0) -> np.ndarray:
        return np.where(np.random.default_rng(seed).random((num, self.tokens, self.dim)) < 0.6, 1.0, -1.0)
