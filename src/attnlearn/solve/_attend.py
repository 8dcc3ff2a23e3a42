"""Attention of one chunk from its scores, whatever kind they are: patterns, and the columns that W and b multiply.

For a chunk of n sequences with the patterns alpha (n, query, m, key) the mixed tokens P = [alpha_1 X, ..., alpha_m X, 1] are
the columns that W and b multiply: F = P [W; b].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._arrays import namespace, reshape
from attnlearn._attention import weigh
from attnlearn.scores import Scores, Visible
from attnlearn.scores._products import mix


def patterns(
    scores: Scores, x: np.ndarray, turned: np.ndarray, keep: np.ndarray | None, causal: bool | Visible
) -> tuple[np.ndarray, Any]:
    """The patterns of one chunk, zero for padded queries, and what derivatives of the scores keep."""
    logits, kept = scores.logits(x, turned)
    return weigh(logits, keep, causal), kept


def mixed(
    alpha: np.ndarray, x: np.ndarray, keep: np.ndarray | None, weight: np.ndarray | None = None
) -> np.ndarray:
    """The columns P (n k, m d + 1) that W and b multiply, times the weight (n, 1, 1) of each sequence."""
    xp = namespace(x)
    n, k, m, _ = alpha.shape
    rows = reshape(mix(alpha, x), (n * k, m * x.shape[2]))
    if keep is None:
        ones = xp.ones((n * k, 1), dtype=rows.dtype, device=rows.device)
    else:
        ones = reshape(keep, (n * k, 1))
    columns = xp.concat([rows, ones], axis=1)
    if weight is not None:
        columns *= reshape(xp.broadcast_to(weight, (n, k, 1)), (n * k, 1))
    return columns


def split_linear(linear: Any, m: int) -> tuple[Any, Any]:
    """[W; b] (m d + 1, o) as W (m, d, o) and b (o,)."""
    return reshape(linear[:-1, :], (m, -1, linear.shape[1])), linear[-1, :]
