"""How well one token and two tokens explain every row of a batch: the only code that sees every example.

Both residuals of `_rows` in float32, compiled: O(n k^2 d_out) operations for n sequences of k tokens, and no array larger than
n k^2 numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._jax import jax, jnp
from attnlearn._precision import precision
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.solve._batch import WhiteBatch


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
            arrays = [_filled(array[start:stop], size) for array in batch.written_out()]
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
