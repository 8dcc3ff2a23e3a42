"""Output rows, and how well two tokens explain each of them.

A row is a query x_a, the tokens it may see, and its output y. With the sum of projections S known, token b alone
explains y up to ‖y - x_b S‖, and the pair b, b' up to

    min over lambda in [0, 1] of ‖y - (lambda x_b + (1 - lambda) x_b') S‖.

`_scan` measures both on every row in float32; `explain_pairs` repeats the pairs in float64 for the few rows that are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from attnlearn.data import Chunk
from attnlearn.solve._batch import WhiteBatch, visible_keys
from attnlearn.solve._white import Whitening


class Rows(NamedTuple):
    """Rows in white coordinates: all tokens of the sequence, the output, the query's index, the visible keys."""

    tokens: Float[np.ndarray, "n k e"]
    outputs: Float[np.ndarray, "n o"]
    query: Int[np.ndarray, "n"]
    keys: Bool[np.ndarray, "n k"]

    def take(self, chosen: np.ndarray) -> Rows:
        """The rows at `chosen`."""
        return Rows(*(array[chosen] for array in self))

    @classmethod
    def join(cls, parts: list[Rows]) -> Rows:
        """Several sets of rows as one."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts)))

    def features(self) -> Float[np.ndarray, "n k e1"]:
        """Tokens with a 1 appended."""
        return with_one(self.tokens)

    def queries(self) -> Float[np.ndarray, "n e1"]:
        """The query of every row, with its 1."""
        return with_one(self.tokens[np.arange(len(self.query)), self.query])


class Pairs(NamedTuple):
    """The best pair of every row: its keys, the weight of the first, residual, second-best residual."""

    first: Int[np.ndarray, "*rows"]
    second: Int[np.ndarray, "*rows"]
    weight: Float[np.ndarray, "*rows"]
    residual: Float[np.ndarray, "*rows"]
    rival: Float[np.ndarray, "*rows"]


def with_one(x: np.ndarray) -> np.ndarray:
    """`x` with a 1 appended to every vector."""
    return np.concatenate([x, np.ones((*x.shape[:-1], 1), x.dtype)], axis=-1)


def as_batch(chunk: Chunk, white: Whitening, causal: bool) -> WhiteBatch:
    """A chunk of examples in white coordinates, float64; rows of padding see no key."""
    visible = visible_keys(chunk.x.shape[1], chunk.mask, causal)
    return WhiteBatch(white.tokens(chunk.x.astype(np.float64)), chunk.y.astype(np.float64), visible)


def rows_at(batch: WhiteBatch, sequence: np.ndarray, query: np.ndarray) -> Rows:
    """The rows of a batch with these indices."""
    return Rows(batch.tokens[sequence], batch.outputs[sequence, query], query, batch.seen[sequence, query])


def explain_pairs(total: Float[np.ndarray, "e1 o"], rows: Rows) -> Pairs:
    """The best pair of every row and the runner-up, in float64 (residuals below 1e-8 of the output are rounding)."""
    values = rows.tokens @ total[:-1]
    rest = rows.outputs - total[-1]
    cross = (values @ rest[..., None])[..., 0]
    return _best_pairs(values @ values.swapaxes(1, 2), cross, np.sum(rest**2, axis=1), rows.keys)


def explain_batch(total: Float[np.ndarray, "e1 o"], batch: WhiteBatch) -> Pairs:
    """The same for every row of a batch, (n, k) of each: the products of a sequence's tokens serve all its rows."""
    values = batch.tokens @ total[:-1]
    rest = batch.outputs - total[-1]
    gram = (values @ values.swapaxes(1, 2))[:, None]
    return _best_pairs(gram, rest @ values.swapaxes(1, 2), np.sum(rest**2, axis=2), batch.seen)


def _best_pairs(
    gram: Float[np.ndarray, "*#rows k k"],
    cross: Float[np.ndarray, "*rows k"],
    squares: Float[np.ndarray, "*rows"],
    keys: Bool[np.ndarray, "*rows k"],
) -> Pairs:
    """From inner products of values with each other, with the output, and of the output with itself."""
    first, second = np.triu_indices(keys.shape[-1], 1)
    norms = np.diagonal(gram, axis1=-2, axis2=-1)
    # y - v_c - lambda (v_b - v_c), in inner products: no array holds a vector for every pair.
    apart = norms[..., first] + norms[..., second] - 2 * gram[..., first, second]
    along = cross[..., first] - cross[..., second] - gram[..., first, second] + norms[..., second]
    weight = np.clip(along / np.maximum(apart, np.finfo(float).tiny), 0, 1)
    square = squares[..., None] - 2 * cross[..., second] + norms[..., second]
    square += weight * (weight * apart - 2 * along)
    residual = np.sqrt(np.maximum(square, 0))
    residual[~(keys[..., first] & keys[..., second])] = np.inf
    best = np.argmin(residual, axis=-1)
    place = best[..., None]
    smallest = np.take_along_axis(residual, place, axis=-1)[..., 0]
    np.put_along_axis(residual, place, np.inf, axis=-1)
    rival = residual.min(axis=-1, initial=np.inf)
    return Pairs(
        first[best], second[best], np.take_along_axis(weight, place, axis=-1)[..., 0], smallest, rival
    )
