"""What smaller or recovered blocks do to a model: its outputs before and after, on inputs that were not recorded.

Where the outputs are logits, the Kullback-Leibler divergence of the predictions from the model's own says what the norm of a difference
does not; for embeddings it is the cosine with the model's own.

Cost: two passes of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import log_softmax

from attnlearn._layer import AttentionLayer
from attnlearn._numbers import pretty
from attnlearn.whole._put_back import rows_of, with_blocks

if TYPE_CHECKING:
    import torch


class Effect(NamedTuple):
    """Norm of the outputs' difference over theirs; mean divergence of predictions in nats where they are logits, mean cosine elsewhere."""

    difference: float
    divergence: float | None
    cosine: float | None

    @property
    def words(self) -> str:
        """The effect as part of a sentence.

        >>> Effect(0.02, 0.0013, None).words
        'the outputs of the model differ by 0.02 of their norm, and its predictions diverge by 0.0013 nats on average,'
        """
        told = f"the outputs of the model differ by {pretty(self.difference)} of their norm"
        if self.divergence is not None:
            return f"{told}, and its predictions diverge by {pretty(self.divergence)} nats on average,"
        return f"{told} (mean cosine {self.cosine:.6f})"


def effect(model: torch.nn.Module, batches: list[Any], layers: Mapping[str, AttentionLayer]) -> Effect | None:
    """How the outputs of the model move when these layers take the place of its blocks; None without layers."""
    if not layers:
        return None
    before, logits = rows_of(model, batches)
    with with_blocks(model, layers):
        after, _ = rows_of(model, batches)
    moved, size = (
        np.sqrt(sum(float(np.vdot(part, part)) for part in parts))
        for parts in (_moved(after, before), before)
    )
    difference = float(moved / max(size, np.finfo(float).tiny))
    mean = _mean(divergences if logits else cosines, before, after)
    return Effect(difference, mean, None) if logits else Effect(difference, None, mean)


def _moved(after: list[np.ndarray], before: list[np.ndarray]) -> list[np.ndarray]:
    return [one - other for one, other in zip(after, before, strict=True)]


def _mean(measure: Any, before: list[np.ndarray], after: list[np.ndarray]) -> float:
    return float(np.mean(np.concatenate([measure(*both) for both in zip(before, after, strict=True)])))


def divergences(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence of the second row's predictions from the first's, from logits.

    >>> divergences(np.zeros((1, 2)), np.log([[1.0, 3.0]])).round(4).tolist()
    [0.1438]
    """
    ours, theirs = log_softmax(before, axis=1), log_softmax(after, axis=1)
    return np.sum(np.exp(ours) * (ours - theirs), axis=1)


def cosines(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Cosine of the rows.

    >>> cosines(np.array([[1.0, 1.0]]), np.array([[2.0, 0.0]])).round(4).tolist()
    [0.7071]
    """
    sizes = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    return np.sum(before * after, axis=1) / np.maximum(sizes, np.finfo(float).tiny)
