"""Fits of noisy outputs for the tests of claims beside errors."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.solve._batch import Batch
from attnlearn.solve.refinement import RefineConfig, refine

TRUTH = AttentionLayer.random(2, 5, seed=1)


def noise(kind: str, y: np.ndarray, rng: np.random.Generator, level: float = 0.03) -> np.ndarray:
    """Errors of one kind, relative to the spread of the outputs."""
    size = level * y.std()
    if kind == "offset":  # one for a whole sequence
        return np.broadcast_to(size * rng.standard_normal((len(y), 1, y.shape[2])), y.shape)
    if kind == "unequal":
        return level * y * rng.standard_normal(y.shape)
    return size * rng.standard_normal(y.shape)


def fitted(
    rng: np.random.Generator,
    kind: str = "independent",
    level: float = 0.03,
    num: int = 700,
    truth: AttentionLayer = TRUTH,
    fresh: int = 0,
) -> tuple[AttentionLayer, Batch]:
    """The least squares fit of `num` noisy outputs, and these with `fresh` ones behind them that it has not seen."""
    x = rng.standard_normal((num + fresh, 4, truth.dim))
    y = truth(x)
    used = Batch(x, y + noise(kind, y, rng, level))
    return refine(
        truth, used.x[:num], used.y[:num], config=RefineConfig(equations_per_unknown=np.inf)
    ).layer, used
