"""Grouping: which heads share a key and a value.

A group loses what its heads have outside the leading directions of all of them (`_closed`), on the side of keys and on that of
values. Groups have equal sizes, as models want them. From the groups as they stand and from groups made by the cheapest
merges, two heads of different groups are exchanged as long as that loses less; the better end is taken.

Cost: one Gram matrix, and for each pair of heads tried the eigenvalues of matrices of (share x width) rows. What can fail: exchanges
end in a local optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import combinations

import numpy as np

from attnlearn._attention import Parameters
from attnlearn.compression._closed import key_rows, value_rows

Groups = tuple[tuple[int, ...], ...]
Side = Callable[[tuple[int, ...]], float]


class Loss:
    """What a group of heads loses when it has keys and values of one width."""

    def __init__(self, *sides: Side) -> None:
        self.of = cache(lambda group: float(sum(side(group) for side in sides)))

    def total(self, groups: Iterable[tuple[int, ...]]) -> float:
        """The loss of all groups."""
        return sum(self.of(tuple(sorted(group))) for group in groups)


def best_groups(inside: Parameters, kv_heads: int, width: int) -> Groups:
    """Groups of equal size, each in the order of its heads.

    >>> theta, w = np.random.default_rng(0).standard_normal((2, 4, 3, 3))
    >>> theta, w = theta[[0, 1, 1, 0]], w[[0, 1, 1, 0]]
    >>> best_groups(Parameters(theta, w, np.zeros((4, 3)), np.zeros(3)), 2, 1)
    ((0, 3), (1, 2))
    """
    heads = len(inside.theta)
    if kv_heads == heads:
        return tuple((head,) for head in range(heads))
    return grouped(
        Loss(outside(key_rows(inside), width), outside(value_rows(inside), width)), heads, kv_heads
    )


def grouped(loss: Loss, heads: int, kv_heads: int) -> Groups:
    """Groups of equal size that lose least, as far as exchanges find them."""
    share = heads // kv_heads
    given = tuple(tuple(range(start, start + share)) for start in range(0, heads, share))
    ends = [_exchanged(start, loss) for start in (given, _merged(heads, share, loss))]
    return tuple(sorted(min(ends, key=loss.total)))


def outside(rows: np.ndarray, width: int) -> Side:
    """What a group loses when the rows of its heads (m, n, d) have `width` directions in common."""
    compact = _compact(rows)
    return lambda group: _tail(compact[list(group)], width)


def _merged(heads: int, share: int, loss: Loss) -> Groups:
    """Groups grown one at a time, by the head that adds least."""
    left, groups = list(range(heads)), []
    while left:
        group = [left.pop(0)]
        while len(group) < share:
            best = min(left, key=lambda head: loss.of(tuple(sorted((*group, head)))))
            group.append(best)
            left.remove(best)
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def _exchanged(groups: Groups, loss: Loss) -> Groups:
    """The groups after every exchange of two heads that loses less."""
    best = list(groups)
    improved = True
    while improved:
        improved = False
        for one, other in combinations(range(len(best)), 2):
            before = loss.total((best[one], best[other]))
            for pair in _exchanges(best[one], best[other]):
                now = loss.total(pair)
                if now < before * (1 - np.sqrt(np.finfo(float).eps)):
                    best[one], best[other], before, improved = *pair, now, True
    return tuple(best)


def _exchanges(
    one: tuple[int, ...], other: tuple[int, ...]
) -> Iterable[tuple[tuple[int, ...], tuple[int, ...]]]:
    for i in one:
        for j in other:
            yield (
                tuple(sorted((*(h for h in one if h != i), j))),
                tuple(sorted((*(h for h in other if h != j), i))),
            )


def _compact(rows: np.ndarray) -> np.ndarray:
    """As few rows with the same Gram matrix of columns, for every head (m, r, d)."""
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    used = int(np.sum(values > np.finfo(float).eps * values.max(initial=0.0), axis=1).max(initial=1))
    return values[:, :used, None] * vectors[:, :used]


def _tail(rows: np.ndarray, width: int) -> float:
    """The squares that are not in the leading `width` directions of the rows of all heads of a group."""
    flat = rows.reshape(-1, rows.shape[-1])
    gram = flat @ flat.T if len(flat) < flat.shape[1] else flat.T @ flat
    values = np.linalg.eigvalsh(gram)[::-1]
    return float(np.maximum(values[width:], 0.0).sum())
