"""The rivals of compression: drop the least important heads, as pruning tools do, with and without a refit.

A head's importance is the norm of what it adds to the outputs on the given tokens. Three rivals share the choice:
`drop` leaves the kept heads as they are; `drop, output refit` fits the output projection again (value projections
kept), which is what a pruned layer can do by one least squares; `drop, full refit` fits every W_i = V_i O_i freely, the
strongest: it is also the first step of ours.
"""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.solve._regress import regress


def importance(layer: AttentionLayer, x: np.ndarray) -> np.ndarray:
    """Norm of each head's contribution to the outputs, about its mean."""
    sizes = []
    for head in range(layer.num_heads):
        one = slice(head, head + 1)
        alone = AttentionLayer(layer.theta[one], layer.w[one], layer.query_bias[one], causal=layer.causal)(x)
        sizes.append(np.linalg.norm(alone - alone.mean(axis=(0, 1))))
    return np.array(sizes)


def prune(layer: AttentionLayer, x: np.ndarray, num_heads: int) -> dict[str, AttentionLayer]:
    """The pruned layer of every rival."""
    kept = np.sort(np.argsort(-importance(layer, x), kind="stable")[:num_heads])
    y = layer(x)
    dropped = layer.replace(theta=layer.theta[kept], w=layer.w[kept], query_bias=layer.query_bias[kept])
    w, b, _ = regress(dropped.theta, dropped.query_bias, x, y, causal=layer.causal)
    return {
        "drop": dropped,
        "drop, output refit": refit_outputs(dropped, x, y),
        "drop, full refit": dropped.replace(w=w, output_bias=b),
    }


def refit_outputs(layer: AttentionLayer, x: np.ndarray, y: np.ndarray) -> AttentionLayer:
    """Least squares for the output projections and the bias, value projections as they are."""
    values = layer.factors().value.astype(np.float64)
    m, _, r = values.shape
    normal, right = np.zeros((m * r + 1,) * 2), np.zeros((m * r + 1, layer.out_dim))
    for start in range(0, len(x), 256):
        tokens = x[start : start + 256]
        mixed = np.einsum("nmab,nbd,mdr->namr", layer.patterns(tokens), tokens, values, optimize=True)
        rows = mixed.reshape(-1, m * r)
        rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
        normal += rows.T @ rows
        right += rows.T @ y[start : start + 256].reshape(len(rows), -1)
    found = np.linalg.lstsq(normal, right, rcond=None)[0]
    w = values @ found[:-1].reshape(m, r, -1)
    return layer.replace(w=w.astype(layer.dtype), output_bias=found[-1].astype(layer.dtype))
