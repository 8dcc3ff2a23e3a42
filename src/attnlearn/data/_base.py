"""Data models: sources of random token sequences that do not depend on how they are read.

Example i of a model depends on (seed, i) alone. Examples are drawn in blocks of fixed size, each block from a
counter-based generator (Philox) keyed by seed, model and block number; so any chunk size, order and number of
workers sees the same bytes. Cost: one draw per value plus at most two partly used blocks per call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from attnlearn._errors import require
from attnlearn._precision import FLOATS
from attnlearn.data._calibration import BLOCK_VALUES


@runtime_checkable
class DataModel(Protocol):
    """What every source of examples offers; labelled models return `(X, y)` instead of `X`.

    >>> from attnlearn.data import Boolean
    >>> isinstance(Boolean(tokens=3, dim=4), DataModel)
    True
    """

    @property
    def tokens(self) -> int:
        """Tokens of a sequence, k."""
        ...

    @property
    def dim(self) -> int:
        """Token dimension, d."""
        ...

    def sample(self, num: int, seed: int = 0) -> Any:
        """Examples 0 .. num - 1."""
        ...

    def stream(self, num: int, chunk: int, seed: int = 0) -> Iterator[Any]:
        """The same examples, `chunk` at a time."""
        ...


def require_count(value: Any, parameter: str, least: int = 1) -> int:
    """`value` as an integer of at least `least`; booleans and floats are refused."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    require(bool(whole and value >= least), parameter, f"must be an integer >= {least}", value)
    return int(value)


class BlockModel(ABC):
    """A data model whose examples are drawn block by block; a subclass only says how to draw one block."""

    _tag: ClassVar[int]
    """Number of the model inside the generator's key, so that two models with one seed are unrelated."""

    def __init__(self, tokens: int, dim: int, dtype: Any) -> None:
        self.tokens = require_count(tokens, "tokens")
        self.dim = require_count(dim, "dim")
        try:
            self.dtype = np.dtype(dtype)
        except TypeError:
            raise ValueError(f"dtype: must be float32 or float64, got {dtype!r}") from None
        require(self.dtype in FLOATS, "dtype", "must be float32 or float64", str(self.dtype))

    @abstractmethod
    def _draw(self, rng: np.random.Generator, num: int) -> tuple[np.ndarray, ...]:
        """`num` examples in float64: `(X,)`, or `(X, y)` when labelled."""

    @property
    def _block(self) -> int:
        """Examples per block: a function of the shape alone, so that chunking cannot change it."""
        return max(1, BLOCK_VALUES // (self.tokens * self.dim))

    def sample(self, num: int, seed: int = 0, *, start: int = 0) -> Any:
        """Examples start .. start + num - 1 of the sequence that `seed` names.

        >>> from attnlearn.data import Gaussian
        >>> model = Gaussian(tokens=3, dim=2)
        >>> bool((model.sample(4, start=6) == model.sample(10)[6:]).all())
        True
        """
        (whole,) = self.stream(num, require_count(num, "num"), seed, start=start)
        return whole

    def stream(self, num: int, chunk: int, seed: int = 0, *, start: int = 0) -> Iterator[Any]:
        """The same examples, `chunk` at a time (the last chunk may be smaller).

        >>> from attnlearn.data import Boolean
        >>> [len(x) for x in Boolean(tokens=3, dim=2).stream(5, chunk=2)]
        [2, 2, 1]
        """
        num, chunk = require_count(num, "num"), require_count(chunk, "chunk")
        seed, start = require_count(seed, "seed", 0), require_count(start, "start", 0)
        return self._stream(num, chunk, seed, start)

    def _stream(self, num: int, chunk: int, seed: int, start: int) -> Iterator[Any]:
        reader = _BlockReader(self, seed)
        for first in range(start, start + num, chunk):
            parts = reader.read(first, min(first + chunk, start + num))
            yield parts[0] if len(parts) == 1 else parts


class _BlockReader:
    """Reads ranges of examples, keeping the last block: small chunks do not draw a block twice."""

    def __init__(self, model: BlockModel, seed: int) -> None:
        self.model, self.seed = model, seed
        self.number, self.values = -1, ()

    def read(self, first: int, stop: int) -> tuple[np.ndarray, ...]:
        size, results = self.model._block, ()
        for number in range(first // size, -(-stop // size)):
            values = self._load(number)
            if not results:
                results = tuple(np.empty((stop - first, *v.shape[1:]), self.model.dtype) for v in values)
            low, high = max(first, number * size), min(stop, (number + 1) * size)
            for result, value in zip(results, values):
                result[low - first : high - first] = value[low - number * size : high - number * size]
        return results

    def _load(self, number: int) -> tuple[np.ndarray, ...]:
        if number != self.number:
            key = np.random.SeedSequence(self.seed, spawn_key=(self.model._tag, number))
            rng = np.random.Generator(np.random.Philox(key))
            self.number, self.values = number, self.model._draw(rng, self.model._block)
        return self.values
