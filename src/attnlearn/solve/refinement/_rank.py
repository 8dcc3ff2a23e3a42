"""Rank control: a rank that turns out too large is lowered once, and taken up again when the fit does not become exact.

Factors of too large a rank leave Gauss-Newton without curvature, and its convergence becomes linear. A lower rank that leads to
no exact fit was not the rank, unless the residual is noise: stationary, and not half of what it was when the rank was lowered.
"""

from __future__ import annotations

import numpy as np

from attnlearn.scores import Scores
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._rank import rank_above

_ROUNDING = calibration.ROUNDING_EPS * float(np.finfo(np.float64).eps)


class RankControl:
    """The rank of the scores during one descent; `higher` holds the scores from before the rank was lowered."""

    def __init__(self, may_lower: bool) -> None:
        self.may_lower, self.higher, self.lowered_at = may_lower, None, np.inf

    def changed(self, scores: Scores, residual: float, shrink: float, stop: str | None) -> Scores | None:
        """The scores at another rank, from which the descent is to go on, or None."""
        if stop in ("floor", "target"):
            return None
        if stop == "deadline":
            return self._raised() if residual > self.lowered_at else None
        lower = lowered(scores, residual) if self.may_lower and self._small(residual, shrink) else None
        if lower is not None:
            self.may_lower, self.higher, self.lowered_at = False, scores, residual
            return lower
        as_good = stop == "noise" and residual > calibration.HALVED * self.lowered_at
        return self._raised() if stop in ("noise", "stalled") and not as_good else None

    def _raised(self) -> Scores | None:
        higher, self.higher = self.higher, None
        return higher

    @staticmethod
    def _small(residual: float, shrink: float) -> bool:
        """Whether the residual is small enough to tell small singular values from zero."""
        slow = shrink > calibration.HALVED
        return residual < calibration.RANK_BELOW * (1 if slow else calibration.DIGIT)


def lowered(scores: Scores, residual: float) -> Scores | None:
    """The same scores at the rank that they turn out to have, or None when they use the rank they were given.

    At the relative residual `residual` a singular value below RANK_OPEN residuals of its head's largest may as
    well be zero. Factors of too large a rank leave Gauss-Newton without curvature and its convergence linear.
    """
    values = np.linalg.svd(np.asarray(scores.at(0).theta, np.float64), compute_uv=False)
    rank = rank_above(values, calibration.RANK_OPEN * residual * values[:, :1])
    given = scores.dim // 2 if scores.rank is None else scores.rank - 1
    if not 1 <= rank <= given:
        return None
    clear = np.all(values[:, rank] <= calibration.DIGIT * values.max(axis=0)[rank - 1])
    return scores.astype(np.float64).of_rank(rank, _ROUNDING) if clear else None
