"""Products over a chunk of sequences, in the shapes that BLAS is fast on.

Arrays run (sequence, query, head, key): then every product is one over all rows or one per sequence.
"""

from __future__ import annotations

import numpy as np

from attnlearn._arrays import by_head, namespace, permute, reshape
from attnlearn.engine._threads import in_order

PIECE = 64
"""Rows of one piece of a product that threads share: enough for full speed."""


def turn(blocks: np.ndarray) -> np.ndarray:
    """The last two axes exchanged, copied: OpenBLAS is slow on many small products with a transposed second factor."""
    xp = namespace(blocks)
    turned = blocks.mT
    return np.ascontiguousarray(turned) if xp is np else xp.asarray(turned, copy=True)


def project(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """x (n, k, d) times every a_i (d, r): (n, k, m, r), as one product."""
    n, k, d = x.shape
    m, _, r = a.shape
    flat = reshape(permute(a, (1, 0, 2)), (d, m * r))
    return reshape(reshape(x, (n * k, d)) @ flat, (n, k, m, r))


def project_back(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The adjoint of `project`: x (n, k, d), g (n, k, m, r) give (m, d, r)."""
    n, k, m, r = g.shape
    d = x.shape[-1]
    flat = reshape(x, (n * k, d)).T @ reshape(g, (n * k, m * r))
    return permute(reshape(flat, (d, m, r)), (1, 0, 2))


def pair_tokens(queries: np.ndarray, turned: np.ndarray) -> np.ndarray:
    """Inner products (n, query, m, key) of queries (n, query, m, d) with turned tokens (n, d, k)."""
    n, k, m, d = queries.shape
    return reshape(reshape(queries, (n, k * m, d)) @ turned, (n, k, m, turned.shape[-1]))


def key_scores(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c_i^T x_b (n, 1, m, key) from tokens (n, key, d)."""
    n, k, d = x.shape
    found = reshape(reshape(x, (n * k, d)) @ c.T, (n, k, c.shape[0]))
    return found.mT[:, None, :, :]


def pair(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Inner products (n, query, m, key) of queries (n, query, m, r) and keys (n, key, m, r)."""
    return by_head(permute(queries, (0, 2, 1, 3)), permute(keys, (0, 2, 3, 1)))


def mix(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Weighted tokens (n, query, m, d) from weights (n, query, m, key)."""
    n, k, m, keys = weights.shape
    return reshape(reshape(weights, (n, k * m, keys)) @ x, (n, k, m, x.shape[-1]))


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b with the rows of `a` shared among threads, in pieces that do not depend on their number."""
    if len(a) <= PIECE or a.size * b.shape[1] < PIECE**3:
        return a @ b
    pieces = [a[start : start + PIECE] for start in range(0, len(a), PIECE)]
    return np.concatenate(list(in_order(lambda piece: piece @ b, pieces)))
