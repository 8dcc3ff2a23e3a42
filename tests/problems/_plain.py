"""Attention written down once more in plain NumPy, so that neither problems nor their judge rest on the library's own code."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS = 200_000
"""Scores of so many (sequence, head, query) rows are held at once."""


def patterns(layer: Any, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Attention weights (n, m, k, k) of a layer with `theta`, `query_bias` and `causal`, in the dtype of `x`."""
    theta, bias = layer.theta.astype(x.dtype), layer.query_bias.astype(x.dtype)
    scores = (x[:, None] @ theta) @ np.swapaxes(x, 1, 2)[:, None]
    scores += (x @ bias.T).transpose(0, 2, 1)[:, :, None, :]
    seen = np.ones((1, 1, x.shape[1], x.shape[1]), bool)
    if layer.causal:
        seen = seen & np.tril(seen[0, 0])
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
    step = max(1, ROWS // (layer.theta.shape[0] * x.shape[1]))
    w, bias = layer.w.astype(dtype), layer.output_bias.astype(dtype)
    outputs = np.empty((*x.shape[:2], w.shape[2]), dtype)
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        read = attended(layer, x[part].astype(dtype), None if mask is None else mask[part])
        outputs[part] = (read @ w).sum(axis=1) + bias
    return outputs if mask is None else outputs * mask[..., None]
