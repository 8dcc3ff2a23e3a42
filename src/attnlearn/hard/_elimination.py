"""The other side of the parity bound: learners that are not statistical.

Gaussian elimination over GF(2): a visible example (b_l = -1, x_1o != x_2o) is one linear equation, the sum of the
bits of J equals its label. A few more than d - 2 of them fix J, whatever the size of J. A single flipped label makes
the system inconsistent, and a subset of equations without one is found with chance (1 - rate)^(d-2) only (learning
parities with noise). Chosen queries: turning one bit at a time shows J in d - 1 questions.

Cost: O(N d^2) bit operations; d - 1 queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from attnlearn._errors import require
from attnlearn._types import Outputs, Tokens


@dataclass(frozen=True)
class Elimination:
    """What GF(2) says: the hidden set if the equations have exactly one solution, otherwise None.

    >>> Elimination(None, equations=5, rank=5, consistent=False).subset is None
    True
    """

    subset: tuple[int, ...] | None
    equations: int
    rank: int
    consistent: bool


def solve_parity(x: Tokens, y: Outputs) -> Elimination:
    """The hidden set of a parity layer from examples, by Gaussian elimination over GF(2).

    >>> from attnlearn.data import Boolean
    >>> from attnlearn.hard import parity
    >>> x = Boolean(tokens=2, dim=8).sample(80)
    >>> solve_parity(x, parity(8, 4, subset=(0, 2, 3, 5))(x)).subset
    (0, 2, 3, 5)
    """
    x, y = np.asarray(x), np.asarray(y)
    require(x.ndim == 3 and x.shape[1] == 2, "x", "must have shape (n, 2, d)", x.shape)
    bits, seen = _bits(x)
    matrix = bits[seen, :-2]
    labels = np.abs(y[seen, 0, -1]) > np.abs(x[seen, 0, -1] - x[seen, 1, -1])  # 0 or twice that: odd parity
    reduced, pivots = _echelon(np.column_stack([matrix, labels]), matrix.shape[1])
    consistent = not reduced[len(pivots) :, -1].any()
    subset = None
    if consistent and len(pivots) == matrix.shape[1]:
        subset = tuple(int(p) for p, value in zip(pivots, reduced[:, -1]) if value)
    return Elimination(subset, len(matrix), len(pivots), bool(consistent))


def flip_labels(x: Tokens, y: Outputs, rate: float, seed: int = 0) -> Outputs:
    """The outputs of a parity layer with the label of each visible example turned with probability `rate`.

    >>> x = np.array([[[1.0, 1, 1, 1, 1], [1.0, -1, 1, -1, -1]]])
    >>> flip_labels(x, np.array([[[0.0, 0, 0, 0, -4], [0.0, 0, 0, 0, 4]]]), rate=1.0)[0, :, 4].tolist()
    [0.0, 0.0]
    """
    require(0 <= rate <= 1, "rate", "must lie between 0 and 1", rate)
    x, out = np.asarray(x), np.array(y)
    _, seen = _bits(x)
    flipped = seen & (np.random.default_rng([seed, 0xF11]).random(len(x)) < rate)
    size = x[:, 0, -1] - x[:, 1, -1]
    out[flipped, 0, -1] = -2 * size[flipped] - out[flipped, 0, -1]
    out[flipped, 1, -1] = 2 * size[flipped] - out[flipped, 1, -1]
    return out


def query_parity(oracle: Callable[[Tokens], Outputs], dim: int) -> tuple[int, ...]:
    """The hidden set from d - 1 chosen queries: which single bit turns the answer.

    >>> from attnlearn.hard import parity
    >>> query_parity(parity(8, 4, subset=(0, 2, 3, 5)), 8)
    (0, 2, 3, 5)
    """
    require(dim >= 4, "dim", "must be at least 4", dim)
    x = np.ones((dim - 1, 2, dim))
    x[:, 1, -2:] = -1.0
    x[np.arange(1, dim - 1), 1, np.arange(dim - 2)] = -1.0
    labels = np.abs(np.asarray(oracle(x))[:, 0, -1]) > 2.0
    return tuple(int(p) for p in np.flatnonzero(labels[1:] != labels[0]))


def _bits(x: np.ndarray) -> tuple[Bool[np.ndarray, "n d"], Bool[np.ndarray, "n"]]:
    """Which bits are -1, and in which examples the label is visible."""
    bits = x[:, 0] * x[:, 1] < 0
    return bits, bits[:, -2] & bits[:, -1]


def _echelon(matrix: np.ndarray, columns: int) -> tuple[Bool[np.ndarray, "n c"], list[int]]:
    """Reduced row echelon form over GF(2) of the first columns, and its pivots."""
    matrix, pivots = matrix.astype(bool), []
    for column in range(columns):
        row = len(pivots)
        below = np.flatnonzero(matrix[row:, column])
        if len(below) == 0:
            continue
        matrix[[row, row + below[0]]] = matrix[[row + below[0], row]]
        others = matrix[:, column].copy()
        others[row] = False
        matrix[others] ^= matrix[row]
        pivots.append(column)
    return matrix, pivots
