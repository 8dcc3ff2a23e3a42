"""What every claim about a fit with errors needs: the layer, both sides, the accuracy that is asked for, and the words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn._distance import BIAS_FLOOR
from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._unknowns import layer_unknowns

CONFIDENCE = 1 - 1e-3
"""Confidence of claims that rest on the spread: it is a normal approximation, which says little about rarer events."""
ERRORS = "the errors of the outputs have mean zero given the inputs and are independent between {unit}s"
LATE = "the time was over"


class Setting(NamedTuple):
    """What every claim needs: the layer on the directions in which tokens vary, both sides, and the words."""

    layer: AttentionLayer
    held: Batch
    used: Batch
    scale: float
    accuracy: float
    rank: int | None
    unit: str
    where: str

    @property
    def errors(self) -> str:
        """What is assumed of the errors."""
        return ERRORS.format(unit=self.unit)

    @property
    def scarce(self) -> bool:
        """Whether a half of the sequences has less than two equations for every unknown."""
        used = self.used
        rows = used.x.shape[0] * used.x.shape[1] if used.mask is None else int(used.mask.sum())
        return rows * self.layer.out_dim < calibration.EQUATIONS_PER_UNKNOWN * layer_unknowns(
            self.layer, self.rank
        )

    @property
    def residual(self) -> np.ndarray:
        """What the layer leaves of the certify outputs."""
        return self.layer(self.held.x, self.held.mask) - self.held.visible


def part_norms(layer: AttentionLayer) -> dict[str, np.ndarray]:
    """What errors of each part are relative to, as `distance` measures them."""
    theta, w = (np.linalg.norm(part.astype(np.float64), axis=(1, 2)) for part in (layer.theta, layer.w))
    tiny = np.finfo(float).tiny
    query = np.maximum(np.linalg.norm(layer.query_bias, axis=1), BIAS_FLOOR * np.linalg.norm(theta))
    output = max(np.linalg.norm(layer.output_bias), BIAS_FLOOR * np.linalg.norm(w), tiny)
    return {
        "theta": np.maximum(theta, tiny), "w": np.maximum(w, tiny), "query_bias": np.maximum(query, tiny), "output_bias": np.array([output]),
    }  # fmt: skip
