"""Input-output examples, wherever they live: one array, or many memory-mapped shards.

`Examples` is what learners read: chunks in order, any selection of sequences, and a fingerprint of the
content. A chunk is a view when it lies in one part and a copy otherwise, so memory is one chunk, not the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Int

from attnlearn._errors import require
from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.data._base import require_count
from attnlearn.data._calibration import SCAN_BYTES


class Chunk(NamedTuple):
    """Some sequences: tokens, outputs, and the mask (True where a token is real) if there is one.

    >>> Chunk(np.ones((2, 3, 4)), np.ones((2, 3, 5)), None).y.shape
    (2, 3, 5)
    """

    x: Tokens
    y: Outputs
    mask: Mask | None


class Part(Protocol):
    """A run of consecutive examples that can be opened as arrays without reading them."""

    num: int

    def open(self) -> Chunk:
        """The arrays, possibly memory-mapped."""
        ...


class ArrayPart:
    """Examples that are already in memory."""

    def __init__(self, chunk: Chunk) -> None:
        self.num = len(chunk.x)
        self._chunk = chunk

    def open(self) -> Chunk:
        """The arrays themselves."""
        return self._chunk


class Examples:
    """Sequences x (n, k, d) with outputs y (n, k, d_out) and an optional mask; made by `as_examples`.

    >>> from attnlearn.data import as_examples
    >>> examples = as_examples(np.ones((5, 3, 2)), np.zeros((5, 3, 4)))
    >>> examples.num, examples.tokens, examples.dim, examples.out_dim
    (5, 3, 2, 4)
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        self._starts = np.cumsum([0, *(part.num for part in self._parts)])
        first = self._parts[0].open()
        self.num = int(self._starts[-1])
        _, self.tokens, self.dim = first.x.shape
        self.out_dim = first.y.shape[2]
        self.dtype = first.x.dtype
        self.masked = first.mask is not None
        self._finite = False

    def __len__(self) -> int:
        return self.num

    def chunks(self, size: int, indices: Int[np.ndarray, "i"] | None = None) -> Iterator[Chunk]:
        """(x, y, mask) of `size` sequences at a time, all in order or those at `indices`; read-only.

        >>> from attnlearn.data import as_examples
        >>> examples = as_examples(np.ones((5, 3, 2)), np.ones((5, 3, 2)))
        >>> [len(x) for x, y, mask in examples.chunks(2)]
        [2, 2, 1]
        """
        size = require_count(size, "size")
        if indices is None:
            return (self._range(start, min(start + size, self.num)) for start in range(0, self.num, size))
        chosen = self._indices(indices)
        return (self._gather(chosen[start : start + size]) for start in range(0, len(chosen), size))

    def take(self, indices: Int[np.ndarray, "i"]) -> Chunk:
        """The sequences at `indices`, in that order, in memory.

        >>> from attnlearn.data import as_examples
        >>> x = np.arange(5.0).reshape(5, 1, 1) * np.ones((5, 2, 1))
        >>> as_examples(x, x).take(np.array([3, 0])).x[:, 0, 0].tolist()
        [3.0, 0.0]
        """
        return self._gather(self._indices(indices))

    def portion(self, indices: Int[np.ndarray, "i"]) -> tuple[Examples, Int[np.ndarray, "i"]]:
        """What another process needs to read the sequences at `indices`, and their indices there.

        Shards on disk travel by name (the other process must see the same files), arrays by value.

        >>> from attnlearn.data import as_examples
        >>> part, there = as_examples(np.ones((5, 3, 2)), np.ones((5, 3, 2))).portion(np.array([1, 4]))
        >>> part.num, there.tolist()
        (2, [0, 1])
        """
        chosen = self._indices(indices)
        if any(isinstance(part, ArrayPart) for part in self._parts):
            return Examples([ArrayPart(self._gather(chosen))]), np.arange(len(chosen))
        first = int(np.searchsorted(self._starts, chosen.min(), side="right")) - 1
        last = int(np.searchsorted(self._starts, chosen.max(), side="right"))
        return Examples(self._parts[first:last]), chosen - int(self._starts[first])

    def fingerprint(self) -> str:
        """SHA-256 of the content: the same for one array and for any sharding of it.

        >>> from attnlearn.data import as_examples
        >>> a = as_examples(np.ones((5, 3, 2)), np.ones((5, 3, 2))).fingerprint()
        >>> a == as_examples(np.ones((5, 3, 2)), np.zeros((5, 3, 2))).fingerprint()
        False
        """
        fields = ["x", "y"] + (["mask"] if self._padded() else [])
        shape = [self.num, self.tokens, self.dim, self.out_dim]
        digest = hashlib.sha256(json.dumps(["attnlearn/examples/1", shape, self.dtype.name, fields]).encode())
        for field in fields:
            for _, block in self._blocks(field):
                little = block.astype(block.dtype.newbyteorder("<"), copy=False)
                digest.update(np.ascontiguousarray(little).view(np.uint8).data)
        return digest.hexdigest()

    def require_finite(self) -> None:
        """Refuse NaN and infinity, naming the first place; one streaming pass, remembered."""
        if self._finite:
            return
        for field in ("x", "y"):
            for start, block in self._blocks(field):
                # A sum is finite unless an entry is not (or it overflows): one pass without a temporary.
                with np.errstate(over="ignore", invalid="ignore"):
                    if np.isfinite(block.sum(dtype=np.float64)):
                        continue
                for sequence, token, coordinate in np.argwhere(~np.isfinite(block)):
                    value = block[sequence, token, coordinate]
                    index = (int(start + sequence), int(token), int(coordinate))
                    raise ValueError(f"{field}: must be finite, got {value} at index {index}")
        self._finite = True

    def _blocks(self, field: str) -> Iterator[tuple[int, np.ndarray]]:
        """(first example, at most SCAN_BYTES of it) of x, y or mask, part by part."""
        for start, part in zip(self._starts, self._parts):
            array = getattr(part.open(), field)
            rows = max(1, SCAN_BYTES // max(1, array[:1].nbytes))
            for row in range(0, part.num, rows):
                yield int(start) + row, array[row : row + rows]

    def _padded(self) -> bool:
        return self.masked and not all(block.all() for _, block in self._blocks("mask"))

    def _indices(self, indices: Any) -> Int[np.ndarray, "i"]:
        chosen = np.asarray(indices)
        whole = chosen.ndim == 1 and (np.issubdtype(chosen.dtype, np.integer) or chosen.size == 0)
        require(whole, "indices", "must be a vector of integers", chosen)
        chosen = chosen.astype(np.int64)
        if chosen.size:
            low, high = int(chosen.min()), int(chosen.max())
            inside = low >= 0 and high < self.num
            require(inside, "indices", f"must lie in 0 .. {self.num - 1}", low if low < 0 else high)
        return chosen

    def _range(self, start: int, stop: int) -> Chunk:
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces = []
        while start < stop:
            offset, part = int(self._starts[first]), self._parts[first]
            high = min(stop, offset + part.num)
            pieces.append(_rows(part.open(), slice(start - offset, high - offset)))
            start, first = high, first + 1
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def _gather(self, chosen: Int[np.ndarray, "i"]) -> Chunk:
        if len(self._parts) == 1:
            return _rows(self._parts[0].open(), chosen)
        owner = np.searchsorted(self._starts, chosen, side="right") - 1
        x = np.empty((len(chosen), self.tokens, self.dim), self.dtype)
        y = np.empty((len(chosen), self.tokens, self.out_dim), self.dtype)
        mask = np.empty((len(chosen), self.tokens), bool) if self.masked else None
        for number in np.unique(owner):
            places = np.flatnonzero(owner == number)
            piece = _rows(self._parts[number].open(), chosen[places] - self._starts[number])
            x[places], y[places] = piece.x, piece.y
            if mask is not None:
                mask[places] = piece.mask
        return Chunk(x, y, mask)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num={self.num}, tokens={self.tokens}, dim={self.dim}, "
            f"out_dim={self.out_dim}, masked={self.masked}, dtype={self.dtype})"
        )


def _rows(chunk: Chunk, rows: slice | np.ndarray) -> Chunk:
    mask = None if chunk.mask is None else _read_only(chunk.mask[rows])
    return Chunk(_read_only(chunk.x[rows]), _read_only(chunk.y[rows]), mask)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _joined(pieces: list[Chunk]) -> Chunk:
    masks = [piece.mask for piece in pieces if piece.mask is not None]
    mask = np.concatenate(masks) if masks else None
    x, y = (np.concatenate([getattr(piece, field) for piece in pieces]) for field in ("x", "y"))
    return Chunk(x, y, mask)
