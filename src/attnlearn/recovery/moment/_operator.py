"""The moment as a linear operator: its products with vectors, streamed over the rows.

With S_ab = e_ab^T G r_a the product is sum_ab S_ab q_a e_ab^T, and with S_ab = q_a^T K e_ab the transposed one
is sum_ab S_ab e_ab r_a^T; e_ab = z_b - mean_b - K_ab (z_a - mean_a) enters through products with z alone.
Vectors are stacked inside the rows, so that each sequence is one product of reasonable size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import numpy as np
from jaxtyping import Float

from attnlearn.data import Examples
from attnlearn.engine import Engine, blocks
from attnlearn.engine._pieces import Pieces, worth_moving
from attnlearn.engine._threads import in_order
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._blocks import LOCAL
from attnlearn.recovery._rows import RowSource
from attnlearn.recovery._signals import Signals
from attnlearn.scores._products import turn
from attnlearn.solve._batch import WhiteBatch

Known = tuple[np.ndarray, np.ndarray, np.ndarray]


class MomentOperator:
    """T = (1 - t) D + t (moment - swap(D) - kurtosis part of D), for the D that each product is given."""

    def __init__(self, source: RowSource, signals: Signals, engine: Engine = LOCAL) -> None:
        self.source, self.engine = source, engine
        self._signs: np.ndarray | None = None
        self._there: Pieces | None = None
        self.kurtosis = signals.kurtosis
        identity = np.array_equal(signals.position_correlation, np.eye(source.k))
        self.correlation = None if identity else signals.position_correlation.astype(np.float32)
        self.mean = signals.position_mean.astype(np.float32) if signals.position_mean.any() else None
        self.most = min((source.dim + 1) * source.dim, source.dim * source.out_dim)
        self.pairs, self._trace = self._trace_part()

    def start(self, rng: np.random.Generator, vectors: int) -> Float[np.ndarray, "l r o"]:
        """Random orthonormal right vectors."""
        return orthonormal(rng.standard_normal((vectors, self.source.dim, self.source.out_dim)))

    def _weights(self, rows: WhiteBatch) -> np.ndarray:
        """1 for the pairs that count, (n or 1, query, key): visible, and not the query itself."""
        k = rows.tokens.shape[1]
        weights = ~np.eye(k, dtype=bool)[None]
        return (weights if rows.visible is None else weights & rows.visible).astype(np.float32)

    def _drop_uncounted(self, rows: WhiteBatch, scores: np.ndarray) -> None:
        """Set to zero, in place, scores (n, query, vectors, key) of pairs that do not count."""
        if rows.visible is None:
            own = np.arange(scores.shape[1])
            scores[:, own, :, own] = 0.0
        else:
            scores *= self._weights(rows)[:, :, None, :]

    def _queries(self, rows: WhiteBatch) -> np.ndarray:
        return np.concatenate([rows.tokens, np.ones((*rows.tokens.shape[:2], 1), np.float32)], axis=2)

    def flipped(self, signs: Float[np.ndarray, "n"]) -> MomentOperator:
        """The same rows with the outputs of whole sequences multiplied by `signs`; shares memory."""
        other = copy.copy(self)
        other._signs = signs
        _, other._trace = other._trace_part()
        return other

    def _trace_part(self) -> tuple[float, Float[np.ndarray, "u o"]]:
        shape = (self.source.dim + 2, self.source.out_dim)
        sums = self._sum("_trace_rows", None, 1, shape)
        pairs = float(sums[-1, 0])  # rides along as a last row
        return pairs, sums[:-1] / max(pairs, 1.0)

    def _trace_rows(self, _matrix: None, _vectors: int, signed: tuple[WhiteBatch, np.ndarray]) -> np.ndarray:
        rows, residual = signed
        spread = 1.0 if self.correlation is None else 1.0 - self.correlation**2
        weights = self._weights(rows)
        pairs = float(weights.sum(dtype=np.float64)) * (len(rows.tokens) if len(weights) == 1 else 1)
        per_query = (weights * spread).sum(axis=2)[..., None]
        trace = np.tensordot(self._queries(rows) * per_query, residual, axes=((0, 1), (0, 1)))
        return np.concatenate([trace.astype(np.float64), np.full((1, residual.shape[2]), pairs)])

    def _mixed(self, rows: WhiteBatch, stacked: np.ndarray, vectors: int) -> np.ndarray:
        """sum_b S_ab e_ab with S_ab = stacked_a . e_ab, for stacked (n, k * vectors, r); same shape back."""
        n, k, r = rows.tokens.shape
        keys = rows.tokens if self.mean is None else rows.tokens - self.mean
        scores = (stacked @ turn(keys)).reshape(n, k, vectors, k)
        if self.correlation is None:
            self._drop_uncounted(rows, scores)
            return scores.reshape(n, k * vectors, k) @ keys
        own = np.einsum("navb,ab->nav", scores, np.eye(k, dtype=np.float32))
        along = self.correlation[None, :, None, :]
        scores = scores - along * own[..., None]
        self._drop_uncounted(rows, scores)
        mixed = (scores.reshape(n, k * vectors, k) @ keys).reshape(n, k, vectors, r)
        mixed -= (scores * along).sum(axis=3)[..., None] * keys[:, :, None, :]
        return mixed.reshape(n, k * vectors, r)

    def times(self, right: np.ndarray, known: Known | None = None) -> np.ndarray:
        """T G for G = `right` (l, r, o): (l, r + 1, r)."""
        there = None if known is None else (known[0], known[2], np.swapaxes(known[1], 1, 2))
        return np.swapaxes(self._product("_times_rows", right, self._trace.T, there), 1, 2)

    def transposed_times(self, left: np.ndarray, known: Known | None = None) -> np.ndarray:
        """T^T K for K = `left` (l, r + 1, r): (l, r, o)."""
        there = None if known is None else (known[0], np.swapaxes(known[1], 1, 2), known[2])
        return self._product("_transposed_rows", np.swapaxes(left, 1, 2), self._trace, there)

    def _product(self, part: str, given: np.ndarray, trace: np.ndarray, known: Known | None) -> np.ndarray:
        """The product of the method `part` with `given` (l, r, from): (l, r, to). `known` and `trace` lead the same way."""
        vectors, r, width = given.shape
        matrix = np.ascontiguousarray(given.transpose(2, 0, 1).reshape(width, vectors * r), np.float32)
        product = self._sum(part, matrix, vectors, (trace.shape[1], vectors * r))
        product = product.reshape(-1, vectors, r).transpose(1, 2, 0) / self.pairs - given @ trace
        if known is None:
            return product
        step = calibration.DEFLATION_STEP
        product *= step
        for s, here, there in zip(*known):
            inner = (here * given).sum(axis=2)
            product += ((1 - step) * s) * inner.sum(axis=1)[:, None, None] * there
            swapped = here @ np.swapaxes(given, 1, 2) @ there
            product -= (step * s) * (swapped + there * (self.kurtosis * inner)[:, :, None])
        return product

    def _times_rows(
        self, matrix: np.ndarray, vectors: int, signed: tuple[WhiteBatch, np.ndarray]
    ) -> np.ndarray:
        rows, residual = signed
        return self._between(rows, residual, self._queries(rows), matrix, vectors)

    def _transposed_rows(
        self, matrix: np.ndarray, vectors: int, signed: tuple[WhiteBatch, np.ndarray]
    ) -> np.ndarray:
        rows, residual = signed
        return self._between(rows, self._queries(rows), residual, matrix, vectors)

    def _between(
        self, rows: WhiteBatch, here: np.ndarray, there: np.ndarray, matrix: np.ndarray, vectors: int
    ) -> np.ndarray:
        """sum_ab there_a (M here_a . e_ab) e_ab^T on some rows, for M = `matrix` (from, l r): (to, l r)."""
        n, k, r = rows.tokens.shape
        stacked = (here.reshape(n * k, -1) @ matrix).reshape(n, k * vectors, r)
        mixed = self._mixed(rows, stacked, vectors).reshape(n * k, vectors * r)
        return there.reshape(n * k, -1).T @ mixed

    def _sum(self, part: str, matrix: np.ndarray | None, vectors: int, shape: tuple[int, ...]) -> np.ndarray:
        """The sum over all rows of the method named `part`, block by block, wherever the engine computes."""
        work = (part, matrix, vectors, shape)
        if self.engine.in_process or not (self.engine.address is None or self._moved()):
            return sum((self._block(*work, block) for block in self._cut()), np.zeros(shape))
        bare = copy.copy(self)
        bare.source, bare.engine, bare._signs, bare._there = None, LOCAL, None, None
        if self.engine.address is None:
            one = partial(_in_process, bare, self.source.signals, work)
            return sum(self.engine.stream(one, map(self._packed, self._cut())), np.zeros(shape))
        shares = blocks(self.source.num, -(-self.source.num // calibration.SHARES))
        if self._there is None:
            packed = Pieces.of([self._packed(share)[:2] for share in shares])
            self._there = packed.derive(_rows, given=(self.source.signals,), work=self._work() / len(packed))
        signs = Pieces.of([None if self._signs is None else self._signs[share] for share in shares])
        return self._there.sum(_elsewhere, signs, given=(bare, work))

    def _cut(self) -> list[slice]:
        return blocks(self.source.num, 2 * calibration.LEAST_ROWS)

    def _work(self) -> float:
        """Multiplications of one pass with one vector."""
        return float(self.source.num) * self.source.k * self.source.dim * self.source.out_dim

    def _moved(self) -> bool:
        return worth_moving(self._work())

    def _block(
        self, part: str, matrix: np.ndarray | None, vectors: int, shape: tuple[int, ...], block: slice
    ) -> np.ndarray:
        """The float64 sum of float32 parts over one block, in order."""
        total = np.zeros(shape)
        for value in in_order(partial(getattr(self, part), matrix, vectors), self._signed(vectors, block)):
            total += value
        return total

    def _packed(self, block: slice) -> tuple[Examples, np.ndarray, np.ndarray | None]:
        """What another process needs for one block."""
        examples, indices = self.source.examples.portion(self.source.indices[block])
        return examples, indices, None if self._signs is None else self._signs[block]

    def _signed(self, vectors: int, block: slice) -> Iterator[tuple[WhiteBatch, np.ndarray]]:
        start = block.start
        for rows in self.source.chunks(vectors, block):
            stop = start + len(rows.tokens)
            residual = rows.outputs
            if self._signs is not None:
                residual = residual * self._signs[start:stop, None, None]
            start = stop
            yield rows, residual


Work = tuple[str, np.ndarray | None, int, tuple[int, ...]]


def _rows(packed: tuple[Examples, np.ndarray], signals: Signals) -> RowSource:
    """The rows of one block in another process, which keeps them if they are small."""
    examples, indices = packed
    return RowSource(examples, signals, indices)


def _elsewhere(rows: RowSource, signs: np.ndarray | None, bare: MomentOperator, work: Work) -> np.ndarray:
    """One block in another process."""
    operator = copy.copy(bare)
    operator.source, operator._signs = rows, signs
    return operator._block(*work, slice(0, rows.num))


def _in_process(
    bare: MomentOperator, signals: Signals, work: Work, packed: tuple[Examples, np.ndarray, np.ndarray | None]
) -> np.ndarray:
    return _elsewhere(_rows(packed[:2], signals), packed[2], bare, work)


def orthonormal(blocks: Float[np.ndarray, "l a b"]) -> Float[np.ndarray, "l a b"]:
    """An orthonormal basis of the span of `blocks`, each seen as one vector."""
    q, _ = np.linalg.qr(blocks.reshape(len(blocks), -1).T)
    return np.ascontiguousarray(q.T).reshape(blocks.shape)
