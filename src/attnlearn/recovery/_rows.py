"""White tokens and residual outputs, chunk by chunk: what every pass of the moment reads.

Each chunk gives z = B^+ (x - mu) and r = (y - linear fit) Omega in float32, Omega the output whitening. Below
CACHE_BYTES the chunks are kept, above they are recomputed in every pass, so memory never grows beyond that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from attnlearn.data import Examples
from attnlearn.recovery import _calibration as calibration
from attnlearn.solve._batch import WhiteBatch, visible_keys

if TYPE_CHECKING:
    from attnlearn.recovery._signals import Signals


def linear_features(
    z: Float[np.ndarray, "n k r"], visible: Bool[np.ndarray, "#n k k"] | None
) -> Float[np.ndarray, "n k f"]:
    """What a layer with constant attention could use: the query's token, the mean of the others, 1.

    Where the number of visible keys varies, attention varies with it: every feature also comes divided by it.
    """
    n, k, _ = z.shape
    one = np.ones((n, k, 1), z.dtype)
    if visible is None:
        others = (z.sum(axis=1, keepdims=True) - z) / max(1, k - 1)
        return np.concatenate([z, others, one], axis=2)
    weights = visible.astype(z.dtype)
    count = np.broadcast_to(weights.sum(axis=2, keepdims=True), (n, k, 1))
    others = (weights @ z - z) / np.maximum(count - 1, 1)
    plain = np.concatenate([z, others, one], axis=2) * (count > 0)
    return np.concatenate([plain, plain / np.maximum(count, 1)], axis=2)


def output_whitening(covariance: Float[np.ndarray, "o o"]) -> tuple[np.ndarray, np.ndarray]:
    """(Sigma + ridge)^(-1/2) and its inverse.

    >>> forth, back = output_whitening(np.diag([4.0, 1.0]))
    >>> bool(np.allclose(forth @ back, np.eye(2)))
    True
    """
    o = len(covariance)
    ridge = calibration.ROUGH * max(np.trace(covariance) / o, np.finfo(float).tiny)
    values, vectors = np.linalg.eigh(covariance + ridge * np.eye(o))
    return (vectors / np.sqrt(values)) @ vectors.T, (vectors * np.sqrt(values)) @ vectors.T


class RowSource:
    """The rows of some sequences, streamed in chunks of whole sequences."""

    def __init__(self, examples: Examples, signals: Signals, indices: Int[np.ndarray, "i"]) -> None:
        self.examples, self.signals, self.indices = examples, signals, indices
        self.num = len(indices)
        self.k = examples.tokens
        self.dim = signals.white.directions
        self.out_dim = examples.out_dim
        self.whitening = output_whitening(signals.residual_covariance)[0]
        size = 4 * self.num * self.k * (self.dim + self.out_dim)
        self._kept = size <= calibration.CACHE_BYTES
        self._cache: WhiteBatch | None = None

    def chunks(self, vectors: int, block: slice | None = None) -> Iterator[WhiteBatch]:
        """Chunks of a block of sequences, small enough that `vectors` products of each stay in cache."""
        block = slice(0, self.num) if block is None else block
        size = self._chunk_size(vectors, block.stop - block.start)
        if not self._kept:
            yield from self._fresh(size, block)
            return
        whole = self._cache = self._cache or self._filled()
        for start in range(block.start, block.stop, size):
            rows = slice(start, min(start + size, block.stop))
            visible = (
                whole.visible if whole.visible is None or len(whole.visible) == 1 else whole.visible[rows]
            )
            yield WhiteBatch(whole.tokens[rows], whole.outputs[rows], visible)

    def _chunk_size(self, vectors: int, sequences: int) -> int:
        """Sequences of one chunk: equal shares of a block, a power of two in number, so that threads end together."""
        per_sequence = 4 * self.k * vectors * (self.dim + self.k)
        least = sequences * per_sequence / calibration.CHUNK_BYTES
        shares = max(calibration.SPARE, 1 << max(0, int(np.ceil(np.log2(max(least, 1))))))
        return max(1, -(-sequences // shares))

    def _filled(self) -> WhiteBatch:
        """All rows in one place, written chunk by chunk so that they are never there twice."""
        whole: WhiteBatch | None = None
        start = 0
        for rows in self._fresh(1024):
            if whole is None:
                z, residual = (np.empty((self.num, *part.shape[1:]), part.dtype) for part in rows[:2])
                visible = rows.visible
                if visible is not None and len(visible) > 1:
                    visible = np.empty((self.num, *visible.shape[1:]), bool)
                whole = WhiteBatch(z, residual, visible)
            stop = start + len(rows.tokens)
            for there, part in zip(whole, rows):
                if there is not None and part is not None and len(part) == stop - start:
                    there[start:stop] = part
            start = stop
        assert whole is not None, "a source holds at least one sequence"
        return whole

    def whole(self) -> tuple[WhiteBatch]:
        """All rows at once; for a few sequences only."""
        return (next(self._fresh(max(1, self.num))),)

    def outputs(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]]:
        """White tokens, the outputs as they are, visible keys and which rows (n k) are real."""
        for x, y, mask in self.examples.chunks(256, self.indices):
            z = self.signals.white.tokens(x, np.float32)
            real = np.ones(len(x) * self.k, bool) if mask is None else mask.reshape(-1)
            yield z, y.astype(np.float32), visible_keys(self.k, mask, self.signals.causal), real

    def _fresh(self, size: int, block: slice = slice(None)) -> Iterator[WhiteBatch]:
        whitening = self.whitening.astype(np.float32)
        linear = (self.signals.linear @ self.whitening).astype(np.float32)
        for x, y, mask in self.examples.chunks(size, self.indices[block]):
            z = self.signals.white.tokens(x, np.float32)
            visible = visible_keys(self.k, mask, self.signals.causal)
            residual = y.astype(np.float32) @ whitening - linear_features(z, visible) @ linear
            if mask is not None:
                z, residual = z * mask[..., None], residual * mask[..., None]
            yield WhiteBatch(z, residual, visible)
