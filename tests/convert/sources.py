"""Attention as textbooks write it, for tests: independent of the package's own arithmetic."""

from __future__ import annotations

import numpy as np


def random_arrays(rng, m=4, h=None, d=12, r=3, s=3, o=12, scale=0.7):
    """wq, wk, wv, wo, bq, bk, bv, bo per head in row convention; h key and value heads."""
    h = m if h is None else h
    shapes = ((m, d, r), (h, d, r), (h, d, s), (m, s, o), (m, r), (h, r), (h, s), (o,))
    return [scale * rng.standard_normal(shape) for shape in shapes]


def attention(x, wq, wk, wv, wo, bq, bk, bv, bo, scale, causal=False):
    """softmax(scale q k^T) v wo + bo, head by head, for x (n, k, d)."""
    group = len(wq) // len(wk)
    outputs = np.zeros((*x.shape[:2], wo.shape[2])) + bo
    for i in range(len(wq)):
        j = i // group
        q, k, v = x @ wq[i] + bq[i], x @ wk[j] + bk[j], x @ wv[j] + bv[j]
        scores = scale * np.einsum("nar,nbr->nab", q, k)
        if causal:
            scores = np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        outputs += weights / weights.sum(axis=2, keepdims=True) @ v @ wo[i]
    return outputs


def relative(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


def same_layer(a, b, tolerance):
    """Whether two layers agree, each array relative to its own size."""
    return all(
        np.abs(p - q).max() <= tolerance * max(np.abs(q).max(), 1e-300)
        for p, q in zip(a.parameters, b.parameters, strict=True)
    )
