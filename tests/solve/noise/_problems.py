"""Fits of noisy outputs, both sides of them and what claims about them need, for the tests of claims beside errors."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn._certificate import Check, Status
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve.noise._setting import Setting
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


def sides(used: Batch, num: int = 700) -> tuple[Batch, Batch]:
    """The first `num` sequences, which were fitted, and the others."""
    return used.take(np.arange(num)), used.take(np.arange(num, used.num))


def setting(layer: AttentionLayer, used: Batch, accuracy: float = 0.05, rank: int | None = None) -> Setting:
    """What the claims about a fit of the first 700 sequences need."""
    fit, held = sides(used)
    return Setting(layer, held, fit, example_scale(fit), accuracy, rank, "input", "")


def status(checks: list[Check]) -> dict[str, Status]:
    """What each check found, by its code."""
    return {check.code: check.status for check in checks}
