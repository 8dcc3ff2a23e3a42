"""What a run leaves for its certificate, and quasi-convexity at every step of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn.training._calibration import ROUNDING_UNITS

ROUNDING_ASSUMED = (f"rounding changes no term by more than {ROUNDING_UNITS} units in the last place",)


class RunEvidence(NamedTuple):
    """A run's trace in float64: entries 0..K, the last at theta_K; comparator, distances, step."""

    loss: np.ndarray
    gradient_sq: np.ndarray
    inner: np.ndarray
    norm: np.ndarray
    step: float
    loss_star: float
    distance: float
    distance_end: float
    comparator_norm: float


def quasi_convexity(run: RunEvidence) -> np.ndarray:
    """f_k = max(0, L_k - L* - <grad L_k, theta_k - theta*> - max(L_k, L*)/3), k = 0..K-1: the violations of (ii)."""
    loss = run.loss[:-1]
    return np.maximum(loss - run.loss_star - run.inner[:-1] - np.maximum(loss, run.loss_star) / 3, 0)
