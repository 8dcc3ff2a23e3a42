"""Products over a chunk of sequences, in the shapes that BLAS is fast on.

Arrays run (sequence, query, head, key): then every product is one over all rows or one per sequence.
"""

from __future__ import annotations

import numpy as np

from attnlearn.engine._threads import in_order

PIECE = 64
"""Rows of one piece of a product that threads share: enough for full speed."""


def turn(blocks: np.ndarray) -> np.ndarray:
    """The last two axes exchanged, copied: OpenBLAS is slow on many small products with a transposed second factor."""
    return np.ascontiguousarray(np.swapaxes(blocks, -1, -2))


def project(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """x (n, k, d) times every a_i (d, r): (n, k, m, r), as one product."""
    n, k, d = x.shape
    m, _, r = a.shape
    return (x.reshape(n * k, d) @ a.transpose(1, 0, 2).reshape(d, m * r)).reshape(n, k, m, r)


def project_back(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The adjoint of `project`: x (n, k, d), g (n, k, m, r) give (m, d, r)."""
    n, k, m, r = g.shape
    d = x.shape[-1]
    return (x.reshape(n * k, d).T @ g.reshape(n * k, m * r)).reshape(d, m, r).transpose(1, 0, 2)


def pair_tokens(queries: np.ndarray, turned: np.ndarray) -> np.ndarray:
    """Inner products (n, query, m, key) of queries (n, query, m, d) with turned tokens (n, d, k)."""
    n, k, m, d = queries.shape
    return (queries.reshape(n, k * m, d) @ turned).reshape(n, k, m, -1)


def key_scores(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c_i^T x_b (n, 1, m, key) from tokens (n, key, d)."""
    n, k, d = x.shape
    return (x.reshape(n * k, d) @ c.T).reshape(n, k, -1).transpose(0, 2, 1)[:, None]


def pair(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Inner products (n, query, m, key) of queries (n, query, m, r) and keys (n, key, m, r)."""
    n, k, m, _ = queries.shape
    found = np.empty((n, k, m, keys.shape[1]), queries.dtype)
    np.matmul(queries.transpose(0, 2, 1, 3), keys.transpose(0, 2, 3, 1), out=found.transpose(0, 2, 1, 3))
    return found


def mix(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Weighted tokens (n, query, m, d) from weights (n, query, m, key)."""
    n, k, m, _ = weights.shape
    return (weights.reshape(n, k * m, k) @ x).reshape(n, k, m, x.shape[-1])


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b with the rows of `a` shared among threads, in pieces that do not depend on their number."""
    if len(a) <= PIECE or a.size * b.shape[1] < PIECE**3:
        return a @ b
    pieces = [a[start : start + PIECE] for start in range(0, len(a), PIECE)]
    return np.concatenate(list(in_order(lambda piece: piece @ b, pieces)))
