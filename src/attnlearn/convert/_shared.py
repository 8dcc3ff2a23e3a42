"""Shared keys and values: the factors of a layer whose consecutive heads use the same ones.

The keys of a group span the rows of all its [Theta_i; c_i], and its values the columns of all its W_i: where heads do share,
that is no more than one head needs, and singular values find it exactly. What can fail: heads that do not share are refused.
"""

from __future__ import annotations

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer, Factors
from attnlearn._parts import require_plain


def shared_factors(layer: AttentionLayer, kv_heads: int, rank: int | None, tolerance: float) -> Factors:
    """Factors with key and value of `kv_heads` groups (h, d, r); query and output have one entry for every head.

    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 4, 6, 2))
    >>> layer = AttentionLayer(query @ key[[0, 0, 1, 1]].transpose(0, 2, 1), query @ key[:1].transpose(0, 2, 1))
    >>> shared_factors(layer.replace(w=layer.theta.transpose(0, 2, 1)), 2, None, 1e-9).key.shape
    (2, 6, 2)
    """
    require_plain(layer, "layer")
    m = layer.num_heads
    require(kv_heads >= 1 and m % kv_heads == 0, "kv_heads", f"must divide the {m} heads", kv_heads)
    scores = np.concatenate([layer.theta, layer.query_bias[:, None, :]], axis=1).astype(np.float64)
    w = layer.w.astype(np.float64)
    key, query = _taken_apart(scores, kv_heads)
    value, output = _taken_apart(np.swapaxes(w, 1, 2), kv_heads)
    share = m // kv_heads
    needed = max(_width(own, shared, share, tolerance) for own, shared in ((query, key), (output, value)))
    width = layer.factors(None, tolerance).query.shape[2] if rank is None else rank
    rule = f"must leave every group of {share} heads no wider than the head dimension {width}"
    require(needed <= width, "kv_heads", rule, f"{kv_heads}, with groups of width {needed}")
    query, key, output, value = (
        _cut(part, width).astype(layer.dtype) for part in (query, key, output, value)
    )
    return Factors(
        query[:, :-1], key, value, np.swapaxes(output, 1, 2), query[:, -1], layer.output_bias.copy()
    )


def _taken_apart(rows: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Shared directions (h, d, s), and what every head makes of them (m, e, s), balanced group by group."""
    m, e, d = rows.shape
    u, s, vt = np.linalg.svd(rows.reshape(groups, m // groups * e, d), full_matrices=False)
    root = np.sqrt(s)[:, None]
    return np.swapaxes(vt, 1, 2) * root, (u * root).reshape(m, e, -1)


def _width(own: np.ndarray, shared: np.ndarray, share: int, tolerance: float) -> int:
    """Columns that hold every head up to `tolerance` of its norm."""
    sizes = np.linalg.norm(own, axis=1) * np.repeat(np.linalg.norm(shared, axis=1), share, axis=0)
    squares = sizes**2
    tails = np.cumsum(squares[:, ::-1], axis=1)[:, ::-1]
    largest = np.maximum(squares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return max(1, int(np.sum(tails > tolerance**2 * largest, axis=1).max()))


def _cut(parts: np.ndarray, width: int) -> np.ndarray:
    """The first columns, zeros where there are no more."""
    kept = parts[..., :width]
    return np.pad(kept, ((0, 0), (0, 0), (0, width - kept.shape[-1])))
