"""Examples cut into chunks, sums over them on all cores, and tokens made white: the ground on which the solvers stand.

Everything here sums over chunks of about `CHUNK_ROWS` query rows, so the working memory does not grow with the number
of examples. Chunks run on as many threads as there are cores, one BLAS thread each, and are added in order: the bytes of
a sum do not depend on the number of threads. NumPy rather than JAX, because the products are small and their shapes new
for every layer: at d = 32, 2,048 rows, a product with the Gauss-Newton matrix takes a third of the time that XLA's CPU
backend needs, and there is nothing to compile.

Padded tokens have `keep` = 0: as keys they get no weight, as queries their rows are zero.

Whitening: x = mu + B z with white z makes badly conditioned or shifted tokens look like standard ones. Tokens that lie in an
affine subspace get fewer coordinates, and the layer that comes back is the canonical one on that subspace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.engine._threads import in_order, limited_blas
from attnlearn.scores import Bilinear, Scores
from attnlearn.solve._calibration import (
    CACHE_LEAST,
    CACHE_SHARE,
    CHUNK_ROWS,
    PIECE,
    THREAD_WORK,
    TOKEN_RANK,
    in_precision,
)

Value = TypeVar("Value")
AnyScores = TypeVar("AnyScores", bound=Scores)


@contextmanager
def on_threads() -> Iterator[None]:
    """Limit BLAS to one thread while chunks run in parallel, and silence overflow: trial points that overflow are rejected."""
    with limited_blas(1), np.errstate(all="ignore"):
        yield


def added(values: Iterable[Any]) -> Any:
    """The sum of arrays, or of tuples of arrays, in order and in the memory of the first; None stays None.

    >>> added([(np.ones(2), None), (np.ones(2), None)])
    (array([2., 2.]), None)
    """
    remaining = iter(values)
    total = next(remaining)
    for value in remaining:
        for one, other in zip(total, value) if isinstance(total, tuple) else [(total, value)]:
            if one is not None:
                one += other
    return total


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
    """Some sequences: x (s, k, d), y (s, k, o), keep (s, k) with 1 for real tokens and 0 for others, or None: all real."""

    x: np.ndarray
    y: np.ndarray
    keep: np.ndarray | None


class Chunks(tuple[Chunk, ...]):
    """All examples, a chunk each."""

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

    def each(self, function: Callable[[int], Value], width: int) -> Iterator[Value]:
        """`function` of every chunk's place, in order; on threads where `width` columns make it worth their while."""
        work = self.rows * width * self[0].y.shape[-1] / len(self)
        places = range(len(self))
        return in_order(function, places) if work >= THREAD_WORK else map(function, places)

    def astype(self, dtype: Any) -> Chunks:
        """The same chunks in another precision."""
        cast = partial(np.asarray, dtype=dtype)
        return Chunks(
            Chunk(cast(chunk.x), cast(chunk.y), None if chunk.keep is None else cast(chunk.keep))
            for chunk in self
        )


def cut(x: Tokens, y: Outputs, mask: Mask | None) -> Chunks:
    """Examples in chunks of nearly equal size."""
    n, k, _ = x.shape
    number = max(1, -(-n // max(1, CHUNK_ROWS // k)))
    keep = None if mask is None else mask.astype(x.dtype)
    if keep is not None:
        x, y = x * keep[..., None], y * keep[..., None]
    edges = np.linspace(0, n, number + 1).round().astype(int)
    pieces = [slice(*ends) for ends in pairwise(edges)]
    return Chunks(Chunk(x[piece], y[piece], None if keep is None else keep[piece]) for piece in pieces)


class Whitening(NamedTuple):
    """x = mean + basis z with white z; `inverse` is the pseudo-inverse of `basis`, z = inverse (x - mean)."""

    mean: Float[np.ndarray, "d"]
    basis: Float[np.ndarray, "d e"]
    inverse: Float[np.ndarray, "e d"]

    def tokens(self, x: Float[np.ndarray, "*rows d"]) -> Float[np.ndarray, "*rows e"]:
        """White coordinates of tokens."""
        return (x - self.mean.astype(x.dtype)) @ self.inverse.T.astype(x.dtype)

    def inside(self, scores: AnyScores) -> AnyScores:
        """Scores of the tokens as scores of white coordinates."""
        return scores.seen_through(self.mean, self.basis)

    def outside(self, scores: AnyScores) -> AnyScores:
        """Scores of white coordinates as scores of the tokens."""
        return scores.seen_through(-self.inverse @ self.mean, self.inverse)

    def enter(self, params: Parameters) -> Parameters:
        """The layer as it acts on white coordinates."""
        theta, w, c, b = (np.asarray(array, np.float64) for array in params)
        scores = self.inside(Bilinear.whole(theta, c))
        return Parameters(scores.a, self.basis.T @ w, scores.c, b + self.mean @ w.sum(axis=0))

    def leave(self, params: Parameters) -> Parameters:
        """The layer as it acts on the tokens themselves."""
        theta, w, c, b = (np.asarray(array, np.float64) for array in params)
        scores, w = self.outside(Bilinear.whole(theta, c)), self.inverse.T @ w
        return Parameters(scores.a, w, scores.c, b - self.mean @ w.sum(axis=0))


def whitening(x: Tokens, mask: Mask | None) -> Whitening:
    """Mean and covariance of the real tokens, in float64, turned into white coordinates."""
    rows = x.reshape(-1, x.shape[-1]) if mask is None else x[mask]
    mean = rows.mean(axis=0, dtype=np.float64)
    covariance = np.zeros((x.shape[-1],) * 2)
    for start in range(0, len(rows), PIECE * CHUNK_ROWS):
        block = rows[start : start + PIECE * CHUNK_ROWS] - mean
        covariance += block.T @ block
    values, vectors = np.linalg.eigh(covariance / max(len(rows), 1))
    seen = values > in_precision(TOKEN_RANK, x.dtype) * max(values[-1], np.finfo(np.float64).tiny)
    root, vectors = np.sqrt(values[seen]), vectors[:, seen]
    # The symmetric root leaves tokens that are white already (nearly) as they are.
    if seen.all():
        return Whitening(mean, (vectors * root) @ vectors.T, (vectors / root) @ vectors.T)
    return Whitening(mean, vectors * root, (vectors / root).T)
