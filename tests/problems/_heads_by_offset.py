"""The judge's comparison of layers with positions: their heads at every offset that sequences of k tokens show.

Heads are compared as the claims are stated: Theta(offset) and W relative to the head's own size, Theta(offset) to its root mean square over the
offsets. Tokens are taken to span all dimensions. Masks must let the same keys through.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from tests.problems._plain import extended_at, seen_pairs

SLACK = 1e-3
"""Bounds are relative to the norm of one layer or of the other; both are the same to first order."""
SMALL_BIAS = 1e-3
"""A bias is measured against its own norm or this share of the layer's, whichever is larger."""


def untrue_by_offset(claims: dict[str, Any], layer: Any, truth: Any, k: int) -> list[str]:
    """Which of C2 and C3 the true layer breaks."""
    if not np.array_equal(seen_pairs(layer, k), seen_pairs(truth, k)):
        return sorted(claims)
    wrong = {
        "C2": lambda claim: truth.num_heads != claim.value,
        "C3": lambda claim: not _within(layer, truth, k, claim.value),
    }
    return [code for code, claim in sorted(claims.items()) if wrong[code](claim)]


def _within(layer: Any, truth: Any, k: int, value: dict[str, Any]) -> bool:
    if layer.num_heads != truth.num_heads:
        return False
    weights, biases = errors_by_offset(layer, truth, k)
    rows, columns = linear_sum_assignment(np.minimum(weights + biases, 1e6))
    bounds = np.asarray(value["heads"], float)[rows]
    if not np.all(weights[rows, columns] <= (1 + SLACK) * bounds):
        return False
    limit = value.get("biases")
    return limit is None or bool(np.all(biases[rows, columns] <= (1 + SLACK) * np.max(limit)))


def errors_by_offset(layer: Any, truth: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors of every head of one layer against every head of the other (m, m): the worse of Theta(offset) and W, and biases."""
    seen = seen_pairs(truth, k)
    offsets = [offset for offset in range(1 - k, k) if np.diagonal(seen, offset).any()]
    found, true = (np.stack([extended_at(which, at) for at in offsets], axis=1) for which in (layer, truth))
    for heads in (found, true):  # what all keys of a query share shows in no softmax
        heads[..., -1] -= heads[..., -1].mean(axis=1, keepdims=True)
    d = truth.dim
    size = np.sqrt(np.mean(np.sum(true[..., :d, :d] ** 2, axis=(2, 3)), axis=1))
    apart = found[:, None] - true[None]
    theta = np.linalg.norm(apart[..., :d, :d], axis=(3, 4)).max(axis=2) / size
    w = np.linalg.norm(layer.w[:, None] - truth.w[None], axis=(2, 3)) / np.linalg.norm(truth.w, axis=(1, 2))
    rest, own = (np.concatenate([part[..., d, :d], part[..., -1]], axis=-1) for part in (apart, true))
    floor = SMALL_BIAS * np.linalg.norm(size)
    bias_size = np.maximum(np.sqrt(np.mean(np.sum(own**2, axis=-1), axis=1)), floor)
    return np.maximum(theta, w), np.linalg.norm(rest, axis=-1).max(axis=2) / bias_size
