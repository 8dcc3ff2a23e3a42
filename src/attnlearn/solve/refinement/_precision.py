"""Precision: in which precision a descent evaluates residuals and solves for steps.

Both begin in float32. Residuals move to the precision of the data below the root of `SOLVED`, so each outer step wins up to four
digits. Inner solves stay in float32, but a run with `float64_solves` takes float64 before it gives up on a small residual: directions of a
ten-thousandth of the curvature, such as mixtures of heads that attend weakly, are noise to float32.
"""

from __future__ import annotations

import numpy as np

from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import Chunks


class Precision:
    """The examples in the precision of the data, and those on which residuals and inner solves are computed."""

    def __init__(self, chunks: Chunks, float64_solves: bool) -> None:
        self.data, self.float64_solves = chunks, float64_solves
        self.residuals = self.solves = chunks.astype(np.float32)

    @property
    def eps(self) -> float:
        """Machine epsilon of the residuals."""
        return float(np.finfo(self.residuals.dtype).eps)

    def doubts_solves(self, residual: float, shrink: float, stop: str | None) -> bool:
        """Whether a small residual that hardly falls may be due to inner solves in float32."""
        if not self.float64_solves or self.solves is self.data or self.residuals is not self.data:
            return False
        held = stop in ("floor", "noise", "stalled") or (stop is None and shrink > calibration.HALVED)
        held &= residual > calibration.FLOOR * float(np.finfo(np.float64).eps)
        return residual <= calibration.NEGLIGIBLE and held

    def doubts_residuals(self, residual: float, stop: str | None) -> bool:
        """Whether the residuals may be rounding in float32."""
        low = stop is not None or residual <= calibration.in_precision(calibration.SOLVED, np.float32)
        return self.residuals.dtype != self.data.dtype and low and stop != "deadline"
