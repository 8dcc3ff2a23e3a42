"""Queries and keys that meet: their inner products, and the derivative of these both ways.

Arrays run (sequence, query, head, key); queries and keys are (n, k, heads, width).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn.scores._products import pair


class Met(NamedTuple):
    """Queries and keys (n, k, m, width) that met."""

    queries: np.ndarray
    keys: np.ndarray


def along(queries: np.ndarray, keys: np.ndarray, met: Met) -> np.ndarray:
    """The change of the inner products when queries and keys change by these."""
    change = pair(queries, met.keys)
    change += pair(met.queries, keys)
    return change


def part(change: np.ndarray, met: Met) -> tuple[np.ndarray, np.ndarray]:
    """The adjoint of `along`: gradients in queries and keys from (n, query, m, key)."""
    queries, keys = np.empty_like(met.queries), np.empty_like(met.keys)
    by_head = change.transpose(0, 2, 1, 3)
    np.matmul(by_head, met.keys.transpose(0, 2, 1, 3), out=queries.transpose(0, 2, 1, 3))
    np.matmul(by_head.swapaxes(2, 3), met.queries.transpose(0, 2, 1, 3), out=keys.transpose(0, 2, 1, 3))
    return queries, keys
