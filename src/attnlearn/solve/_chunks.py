"""Examples cut into chunks, and sums over them on all cores: the ground on which the solvers stand.

Everything here sums over chunks of about `CHUNK_ROWS` query rows, so the working memory does not grow with the number
of examples. Chunks run on as many threads as there are cores, one BLAS thread each, and are added in order: the bytes of
a sum do not depend on the number of threads. On a cluster its workers hold the chunks and add them (`engine._pieces`); nobody
who sums knows. NumPy rather than JAX, because the products are small and their shapes new
for every layer: at d = 32, 2,048 rows, a product with the Gauss-Newton matrix takes a third of the time that XLA's CPU
backend needs, and there is nothing to compile.

Padded tokens have `keep` = 0: as keys they get no weight, as queries their rows are zero.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.engine._pieces import Pieces, added, current_device
from attnlearn.engine._threads import limited_blas
from attnlearn.solve._calibration import CACHE_LEAST, CACHE_SHARE, CHUNK_ROWS, ENOUGH_SHARE

__all__ = ["Chunk", "Chunks", "Pieces", "added", "cache_bytes", "cut", "on_threads"]


@contextmanager
def on_threads() -> Iterator[None]:
    """Limit BLAS to one thread while chunks run in parallel, and silence overflow: trial points that overflow are rejected."""
    with limited_blas(1), np.errstate(all="ignore"):
        yield


@cache
def cache_bytes() -> int:
    """Memory that arrays kept between passes may take on this machine.

    >>> cache_bytes() >= 2**30
    True
    """
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        total = 0
    return max(CACHE_LEAST, int(CACHE_SHARE * total))


class Chunk(NamedTuple):
    """Some sequences: x (s, k, d), y (s, k, o), keep (s, k) with 1 for real tokens and 0 for others, or None: all real.

    `places` (s,) are those of the sequences among all examples. With a `weight` (s, 1, 1) the rows of a sequence count so many times:
    P and the values are multiplied by it, and so should y be.
    """

    x: np.ndarray
    y: np.ndarray
    keep: np.ndarray | None
    places: np.ndarray
    weight: np.ndarray | None = None


class Chunks(Pieces):
    """All examples, a chunk each."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        given = list(chunks)
        super().__init__(len(given), device=current_device())
        self.values = dict(enumerate(given))

    def __getitem__(self, place: int) -> Chunk:
        return self.values[place]

    @property
    def dtype(self) -> np.dtype:
        """Precision of tokens and outputs."""
        return self[0].x.dtype

    @property
    def rows(self) -> int:
        """Query rows, padded ones included."""
        return sum(chunk.x.shape[0] * chunk.x.shape[1] for chunk in self)

    @property
    def real(self) -> float:
        """Rows of real tokens."""
        return float(sum(chunk.x[..., 0].size if chunk.keep is None else chunk.keep.sum() for chunk in self))

    def multiplications(self, width: int) -> float:
        """Rows x columns x outputs of one chunk on average."""
        return self.rows * width * self[0].y.shape[-1] / len(self)

    def astype(self, dtype: Any) -> Chunks:
        """The same chunks in another precision."""

        def cast(part: np.ndarray | None) -> Any:
            return None if part is None else np.asarray(part, dtype)

        return Chunks(
            Chunk(cast(chunk.x), cast(chunk.y), cast(chunk.keep), chunk.places, cast(chunk.weight))
            for chunk in self
        )

    def weighted(self, weights: np.ndarray) -> Chunks:
        """The same chunks with a weight for every example; y is left as it is."""
        return Chunks(
            chunk._replace(weight=weights[chunk.places][:, None, None].astype(self.dtype)) for chunk in self
        )


def cut(x: Tokens, y: Outputs, mask: Mask | None) -> Chunks:
    """Examples in chunks of nearly equal size; with a mask the longest first, and a chunk is as long as its longest sequence.

    A sequence ends with its last real token. Lengths in one chunk differ by at most a quarter, so hardly any work is spent on padding;
    only the last chunk has whatever is left.

    >>> mask = np.arange(8) < np.repeat([2, 8], 1_000)[:, None]
    >>> {chunk.x.shape[1] for chunk in cut(np.ones((2_000, 8, 5)), np.ones((2_000, 8, 1)), mask)}
    {8, 2}
    """
    if mask is None:
        every = np.arange(len(x))
        return Chunks(Chunk(x[piece], y[piece], None, every[piece]) for piece in _pieces(0, *x.shape[:2]))
    lengths = np.maximum(x.shape[1] - np.argmax(mask[:, ::-1], axis=1), 1)
    lengths[~mask.any(axis=1)] = 1
    order = np.argsort(-lengths, kind="stable")
    return Chunks(_short(x, y, mask, order[piece], longest) for piece, longest in _alike(lengths[order]))


def _alike(lengths: np.ndarray) -> Iterator[tuple[slice, int]]:
    """Pieces of falling lengths that differ by at most a quarter unless few are left, and the longest of each."""
    start = 0
    while start < len(lengths):
        longest = int(lengths[start])
        number = len(lengths) - start
        if number * longest > CHUNK_ROWS:
            number = int(np.sum(lengths[start:] >= (1 - ENOUGH_SHARE) * longest))
        yield from ((piece, longest) for piece in _pieces(start, number, longest))
        start += number


def _pieces(start: int, number: int, tokens: int) -> Iterator[slice]:
    """So many sequences from `start` on, in pieces of at most about `CHUNK_ROWS` rows."""
    pieces = max(1, -(-number // max(1, CHUNK_ROWS // tokens)))
    edges = start + np.linspace(0, number, pieces + 1).round().astype(int)
    return (slice(*ends) for ends in pairwise(edges))


def _short(x: Tokens, y: Outputs, mask: Mask, chosen: np.ndarray, longest: int) -> Chunk:
    """Some sequences without the padding that all of them have."""
    keep, x, y = (array[chosen, :longest] for array in (mask, x, y))
    if keep.all():
        return Chunk(x, y, None, chosen)
    keep = keep.astype(x.dtype)
    return Chunk(x * keep[..., None], y * keep[..., None], keep, chosen)
