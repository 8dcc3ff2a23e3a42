"""Attention written down once more in plain NumPy, so that neither problems nor their judge rest on the library's own code."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS = 200_000
"""Scores of so many (sequence, head, query) rows are held at once."""


def patterns(layer: Any, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Attention weights (n, m, k, k) of a layer with `theta`, `query_bias` and `causal`, or with positions, in the dtype of `x`."""
    if not getattr(layer, "plain_scores", True):
        scores = scores_by_offset(layer, x)
    else:
        theta, bias = layer.theta.astype(x.dtype), layer.query_bias.astype(x.dtype)
        scores = (x[:, None] @ theta) @ np.swapaxes(x, 1, 2)[:, None]
        scores += (x @ bias.T).transpose(0, 2, 1)[:, :, None, :]
    seen = seen_pairs(layer, x.shape[1])[None, None]
    if mask is not None:
        seen = seen & mask[:, None, None, :]
    return softmax(np.where(seen, scores, -np.inf))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Weights over the last axis; a row that sees nothing has weights of zero."""
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def attended(layer: Any, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """What every head reads before its W: (n, m, k, d)."""
    return patterns(layer, x, mask) @ x[:, None]


def forward(layer: Any, x: np.ndarray, mask: np.ndarray | None = None, dtype: Any = np.float64) -> np.ndarray:
    """Outputs (n, k, d_out), a chunk of sequences at a time; rows of padding are zero."""
    step = max(1, ROWS // (layer.w.shape[0] * x.shape[1]))
    w, bias = layer.w.astype(dtype), layer.output_bias.astype(dtype)
    outputs = np.empty((*x.shape[:2], w.shape[2]), dtype)
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        read = attended(layer, x[part].astype(dtype), None if mask is None else mask[part])
        outputs[part] = (read @ w).sum(axis=1) + bias
    return outputs if mask is None else outputs * mask[..., None]


def seen_pairs(layer: Any, k: int) -> np.ndarray:
    """Which keys (query, key) of k tokens a query sees: none after itself, and none outside a window."""
    back = np.subtract.outer(np.arange(k), np.arange(k))
    window = getattr(layer, "window", None)
    seen = (back >= 0) if layer.causal else np.ones((k, k), bool)
    return seen if window is None else seen & (np.abs(back) < window)


def extended_at(layer: Any, offset: int) -> np.ndarray:
    """The matrices (m, d + 1, d + 1) between (x_a, 1) and (x_b, 1) at an offset b - a, written out from the arrays of a layer."""
    if layer.plain_scores:
        return _extended(layer.theta, layer.query_bias, np.zeros(len(layer.w)))
    arrays = layer.form.arrays()
    if "query" in arrays:
        rotation = layer.form.rotation
        p, total = rotation.pairs, arrays["query"][..., 2 * rotation.pairs :]
        total = total @ np.swapaxes(arrays["key"][..., 2 * p :], 1, 2)
        for j, frequency in enumerate(rotation.frequencies):
            a, b = (arrays[name][..., j] + 1j * arrays[name][..., j + p] for name in ("query", "key"))
            turned = np.exp(1j * frequency * offset) * a.conj()[:, :, None] * b[:, None, :]
            total = total + turned.real
        return total
    kind, numbers = layer.form.offsets, arrays["table"]
    if kind.kind == "slope":
        added = -abs(offset) * numbers[:, 0]
    elif kind.kind == "table":
        added = numbers[:, int(np.clip(offset, -kind.reach, kind.reach)) + kind.reach]
    else:
        raise NotImplementedError(kind.kind)
    return _extended(arrays["theta"], arrays["query_bias"], added)


def _extended(theta: np.ndarray, bias: np.ndarray, added: np.ndarray) -> np.ndarray:
    m, d, _ = theta.shape
    found = np.zeros((m, d + 1, d + 1))
    found[:, :d, :d], found[:, d, :d], found[:, d, d] = theta, bias, added
    return found


def scores_by_offset(layer: Any, x: np.ndarray) -> np.ndarray:
    """Scores (n, m, k, k) of a layer with positions, one offset after the other."""
    n, k, _ = x.shape
    long = np.concatenate([x, np.ones((n, k, 1), x.dtype)], axis=2)
    scores = np.zeros((n, len(layer.w), k, k), x.dtype)
    for offset in range(1 - k, k):
        query = np.arange(max(0, -offset), min(k, k - offset))
        turned = np.einsum("nad,mde->nmae", long[:, query], extended_at(layer, offset).astype(x.dtype))
        scores[:, :, query, query + offset] = np.einsum("nmae,nae->nma", turned, long[:, query + offset])
    return scores
