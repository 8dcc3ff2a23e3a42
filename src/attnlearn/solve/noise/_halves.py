"""Two halves: fits of disjoint halves of the sequences differ as the spread predicts, if the linear model holds.

The difference of their answers has four times the covariance of the whole fit's error. The mean of both less the whole fit is
the bias of second order: that of a fit to half as many examples is twice as large.

Cost: two refinements from the answer, which take a few steps. What can fail: halves with fewer equations than unknowns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve.refinement import RefineConfig, refine


class Halves(NamedTuple):
    """The fits of two disjoint halves, heads in the order of the whole fit's."""

    first: AttentionLayer
    second: AttentionLayer

    def difference(self, part: str) -> np.ndarray:
        """The norm of the difference by head, of "theta", "w" or "query_bias"; of "output_bias" one number."""
        return _norms(getattr(self.first, part) - getattr(self.second, part), part)

    def bias(self, whole: AttentionLayer, part: str) -> np.ndarray:
        """The norm of the mean of both less the whole fit, by head."""
        mean = (getattr(self.first, part) + getattr(self.second, part)) / 2
        return _norms(mean - getattr(whole, part), part)


def _norms(values: np.ndarray, part: str) -> np.ndarray:
    rows = values.reshape(1 if part == "output_bias" else len(values), -1)
    return np.linalg.norm(rows.astype(np.float64), axis=1)


def fit_halves(
    layer: AttentionLayer,
    used: Batch,
    *,
    rank: int | None = None,
    seed: int = 0,
    deadline: float | None = None,
) -> Halves:
    """Refine `layer` on each half of the sequences, or of their groups.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((200, 5, 4))
    >>> bool(fit_halves(layer, Batch(x, layer(x))).difference("w").max() < 1e-10)
    True
    """
    units = np.arange(used.num) if used.groups is None else np.unique(used.groups, return_inverse=True)[1]
    side = (np.random.default_rng([seed, 0x4A]).permutation(int(units.max()) + 1) % 2)[units]
    config = RefineConfig(
        max_steps=calibration.STEPS_MOST // 4, equations_per_unknown=np.inf, average=False, lower=False, float64_solves=True,
        deadline=deadline,
    )  # fmt: skip
    start, found = layer.astype(np.float64), []
    for half in (0, 1):
        some = used.take(np.flatnonzero(side == half)).astype(np.float64)
        found.append(refine(start, some.x, some.y, mask=some.mask, rank=rank, config=config).layer)
    return Halves(*found)
