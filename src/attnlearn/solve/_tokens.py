"""What tokens and rows of outputs show before anything is fitted: causality and repetition.

Cost: least squares of two rows on their own tokens, and a sort of some tokens. What can fail: a causal layer whose later rows are
linear too (attention that does not vary) does not look causal, and need not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.solve import _calibration as calibration


class Unexplained(NamedTuple):
    """Shares of the variance of the first and of the last row that a linear map of its own token leaves."""

    first: float
    last: float

    @property
    def causal(self) -> bool:
        """Whether the first row depends on its own token alone, and the last one does not."""
        return self.first < calibration.CAUSAL < self.last**2


def causal_sequences(dim: int) -> int:
    """Sequences that are enough to tell whether a layer is causal."""
    return max(calibration.EQUATIONS_PER_UNKNOWN * (dim + 1), calibration.SAMPLE)


def unexplained(x: Tokens, y: Outputs, mask: Mask | None) -> Unexplained:
    """What the own token leaves of the first and of the last real row.

    >>> from attnlearn import AttentionLayer
    >>> x = np.random.default_rng(0).standard_normal((300, 4, 3))
    >>> [unexplained(x, AttentionLayer.random(2, 3, causal=causal)(x), None).causal for causal in (True, False)]
    [True, False]
    """
    mask = np.ones(x.shape[:2], bool) if mask is None else mask
    first, last = mask.argmax(axis=1), x.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return Unexplained(_share_left(x, y, first), _share_left(x, y, last))


def _share_left(x: Tokens, y: Outputs, place: Int[np.ndarray, "n"]) -> float:
    every = np.arange(len(x))
    own, rows = (part[every, place].astype(np.float64) for part in (x, y))
    own, rows = (part - part.mean(axis=0) for part in (own, rows))
    solution, _, rank, _ = np.linalg.lstsq(own, rows, rcond=None)
    share = np.sum((rows - own @ solution) ** 2) / max(np.sum(rows**2), np.finfo(float).tiny)
    return float(share / max(1 - (rank + 1) / len(own), calibration.DIGIT))  # what is left of the freedom


def repeated(tokens: Float[np.ndarray, "t d"], two_values: bool) -> bool:
    """Whether most tokens occur more than once, as the words of a vocabulary do; fair signs (`two_values`) may.

    >>> words = np.arange(8.0).reshape(4, 2)
    >>> repeated(words, False), repeated(np.concatenate([words] * 3), False)
    (False, True)
    """
    signs = two_values and np.all((tokens == tokens.min(axis=0)) | (tokens == tokens.max(axis=0)))
    return not signs and 2 * len(np.unique(tokens, axis=0)) < len(tokens)
