"""Output rows, and how well one token or two tokens explain each of them: the only code that sees every example.

A row is a query x_a, the tokens it may see, and its output y. With the sum of projections S known, token b alone
explains y up to ‖y - x_b S‖, and the pair b, b' up to

    min over lambda in [0, 1] of ‖y - (lambda x_b + (1 - lambda) x_b') S‖.

`scan` measures both on a batch in float32 (compiled, O(n k^2 d_out) for n sequences of k tokens, no array larger
than n k^2 numbers); `explain_pairs` repeats the pairs in float64 for the few rows that are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from attnlearn._precision import precision
from attnlearn.data import Chunk
from attnlearn.recovery.sculpt import _calibration as calibration
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

    first: Int[np.ndarray, "n"]
    second: Int[np.ndarray, "n"]
    weight: Float[np.ndarray, "n"]
    residual: Float[np.ndarray, "n"]
    rival: Float[np.ndarray, "n"]


def with_one(x: np.ndarray) -> np.ndarray:
    """`x` with a 1 appended to every vector."""
    return np.concatenate([x, np.ones((*x.shape[:-1], 1), x.dtype)], axis=-1)


def as_batch(chunk: Chunk, white: Whitening, causal: bool) -> WhiteBatch:
    """A chunk of examples in white coordinates, float64; rows of padding see no key."""
    n, k, _ = chunk.x.shape
    seen = visible_keys(k, chunk.mask, causal)
    visible = np.broadcast_to(True if seen is None else seen, (n, k, k))
    return WhiteBatch(white.tokens(chunk.x.astype(np.float64)), chunk.y.astype(np.float64), visible)


def rows_at(batch: WhiteBatch, sequence: np.ndarray, query: np.ndarray) -> Rows:
    """The rows of a batch with these indices."""
    return Rows(batch.tokens[sequence], batch.outputs[sequence, query], query, batch.visible[sequence, query])


class Scan(NamedTuple):
    """For every row of a batch: relative residual of the best token and of the best pair, that pair's weight."""

    single: Float[np.ndarray, "n k"]
    pair: Float[np.ndarray, "n k"]
    weight: Float[np.ndarray, "n k"]


def scan(total: Float[np.ndarray, "e1 o"], batch: WhiteBatch) -> Scan:
    """How well one token and two tokens explain each row, in float32 and in pieces of fixed size."""
    n, k, _ = batch.tokens.shape
    size = max(1, calibration.SCAN_NUMBERS // (k * k * max(k, 2)))
    size = min(size, 1 << max(0, n - 1).bit_length())  # a power of two: the last batch is seldom a new shape
    parts = []
    with precision(np.float32):
        single = jnp.asarray(total, jnp.float32)
        for start in range(0, n, size):
            stop = min(n, start + size)
            arrays = [_filled(array[start:stop], size) for array in batch]
            part = _scan(
                single, *(jnp.asarray(a, a.dtype if a.dtype == bool else np.float32) for a in arrays)
            )
            parts.append([np.asarray(array)[: stop - start] for array in part])
    return Scan(*(np.concatenate(arrays) for arrays in zip(*parts)))


def _filled(array: np.ndarray, size: int) -> np.ndarray:
    missing = size - len(array)
    return (
        array if not missing else np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
    )


@jax.jit
def _scan(total: jax.Array, tokens: jax.Array, outputs: jax.Array, visible: jax.Array):
    # Sequences run last, and pairs one after the other: every step is one pass over contiguous numbers.
    values = tokens @ total[:-1]
    rest = outputs - total[-1]
    gram = jnp.transpose(jnp.einsum("nbo,nco->nbc", values, values), (1, 2, 0))
    cross = jnp.transpose(jnp.einsum("nbo,nao->nba", values, rest), (1, 2, 0))
    squares = jnp.sum(rest**2, axis=-1).T + 1e-30
    seen = jnp.transpose(visible, (2, 1, 0))
    norms = jnp.diagonal(gram, axis1=0, axis2=1).T
    alone = jnp.where(seen, squares - 2 * cross + norms[:, None], jnp.inf).min(axis=0)
    first, second = (jnp.asarray(places) for places in np.triu_indices(len(norms), 1))

    def compare(place, best):
        b, c = first[place], second[place]
        # Along the pair: y - v_c - lambda (v_b - v_c), with everything in inner products.
        apart = norms[b] + norms[c] - 2 * gram[b, c] + 1e-12
        along = cross[b] - cross[c] - (gram[b, c] - norms[c])
        weight = jnp.clip(along / apart, 0, 1)
        both = squares - 2 * cross[c] + norms[c] - 2 * weight * along + weight**2 * apart
        better = seen[b] & seen[c] & (both < best[0])
        return jnp.where(better, both, best[0]), jnp.where(better, weight, best[1])

    start = jnp.full_like(squares, jnp.inf), jnp.zeros_like(squares)
    pair, weight = jax.lax.fori_loop(0, len(first), compare, start)
    relative = lambda square: jnp.sqrt(jnp.maximum(square, 0) / squares).T  # noqa: E731
    return relative(alone), relative(pair), weight.T


def explain_pairs(total: Float[np.ndarray, "e1 o"], rows: Rows) -> Pairs:
    """The best pair of every row and the runner-up, in float64 (residuals below 1e-8 of the output are rounding)."""
    first, second = np.triu_indices(rows.tokens.shape[1], 1)
    values = rows.tokens @ total[:-1]
    rest = rows.outputs - total[-1]
    gram = values @ values.swapaxes(1, 2)
    norms = np.diagonal(gram, axis1=1, axis2=2)
    cross = (values @ rest[..., None])[..., 0]
    # y - v_c - lambda (v_b - v_c), in inner products: no array holds a vector for every pair.
    apart = norms[:, first] + norms[:, second] - 2 * gram[:, first, second]
    along = cross[:, first] - cross[:, second] - gram[:, first, second] + norms[:, second]
    weight = np.clip(along / np.maximum(apart, np.finfo(float).tiny), 0, 1)
    square = np.sum(rest**2, axis=1)[:, None] - 2 * cross[:, second] + norms[:, second]
    square += weight * (weight * apart - 2 * along)
    residual = np.sqrt(np.maximum(square, 0))
    residual[~(rows.keys[:, first] & rows.keys[:, second])] = np.inf
    each = np.arange(len(residual))
    best = np.argmin(residual, axis=1)
    smallest = residual[each, best]
    residual[each, best] = np.inf
    rival = residual.min(axis=1, initial=np.inf)
    return Pairs(first[best], second[best], weight[each, best], smallest, rival)
