"""Writing recorded activations: shard by shard into a hidden sibling, renamed when everything is there.

Memory is one shard. Sequences of different lengths are padded to the longest with a mask; as the longest is
known only at the end, earlier and shorter shards are then rewritten one at a time. Padded tokens and outputs
are stored as zeros, whatever the model put there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._files import read_tensors, temporary_name, to_disk, write_json, write_tensors
from attnlearn._precision import as_mask, promoted, require_finite, to_numpy
from attnlearn._types import ArrayLike
from attnlearn.data._calibration import SHARD_BYTES
from attnlearn.data._examples import Chunk, Examples
from attnlearn.data._manifest import FILE, Manifest, shard_name
from attnlearn.data._shard import open_shard


class RecordedWriter:
    """Writes a `Recorded` folder; it appears whole when the `with` block ends, or not at all.

    >>> import tempfile; folder = tempfile.mkdtemp() + "/recorded"
    >>> with RecordedWriter(folder, causal=False) as writer:
    ...     writer.write(np.ones((4, 3, 2)), np.ones((4, 3, 2)))
    ...     writer.write(np.ones((1, 5, 2)), np.ones((1, 5, 2)))
    >>> from attnlearn.data import Recorded
    >>> Recorded(folder)
    Recorded(num=5, tokens=5, dim=2, out_dim=2, masked=True, dtype=float64)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        causal: bool | None = None,
        provenance: Mapping[str, Any] | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.folder = Path(folder)
        self.causal, self.provenance = causal, dict(provenance or {})
        self.num = 0
        self.words: list[list[str]] = []
        require_new_folder(self.folder)
        self._shard_bytes = shard_bytes
        self._pending: list[Chunk] = []
        self._pending_bytes = 0
        self._shards: list[tuple[int, int, bool]] = []  # sequences, tokens, masked
        self._shape: tuple[int, int, np.dtype] | None = None  # dim, out_dim, dtype
        self._temporary = self.folder.parent / temporary_name(self.folder.name)
        try:
            self._temporary.mkdir()
        except OSError as error:
            raise ValueError(f"folder: cannot write {self.folder} ({error.strerror})") from error

    def __enter__(self) -> RecordedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def write(self, x: ArrayLike, y: ArrayLike, mask: ArrayLike | None = None) -> None:
        """Add sequences x (n, k, d), y (n, k, d_out); k may differ from call to call."""
        chunk = self._checked(x, y, mask)
        per_sequence = chunk.x[0].nbytes + chunk.y[0].nbytes
        rows = max(1, self._shard_bytes // per_sequence)
        for start in range(0, len(chunk.x), rows):
            piece = _take(chunk, slice(start, start + rows))
            self._pending.append(piece)
            self._pending_bytes += per_sequence * len(piece.x)
            if self._pending_bytes >= self._shard_bytes:
                self._flush()
        self.num += len(chunk.x)

    def close(self) -> None:
        """Finish the shards, write the manifest and give the folder its name."""
        try:
            require(self.num > 0, "batches", "must hold at least one sequence", self.num)
            self._flush()
            tokens = max(k for _, k, _ in self._shards)
            masked = any(m or k < tokens for _, k, m in self._shards)
            for number, (_, k, m) in enumerate(self._shards):
                if k < tokens or m < masked:
                    self._rewrite(number, tokens, masked)
            write_json(self._temporary / FILE, self._manifest(tokens, masked).to_json())
            _publish(self._temporary, self.folder)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove everything that was written so far."""
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _checked(self, x: ArrayLike, y: ArrayLike, mask: ArrayLike | None) -> Chunk:
        x, y = to_numpy(x, "x"), to_numpy(y, "y")
        require(x.ndim == 3 and min(x.shape) >= 1, "x", "must have shape (n, k, d), none of them zero", x)
        fits = y.ndim == 3 and y.shape[:2] == x.shape[:2] and y.shape[2] >= 1
        require(fits, "y", f"must have shape ({x.shape[0]}, {x.shape[1]}, d_out) to go with x", y)
        x, y = promoted(x, y)
        shape = (x.shape[2], y.shape[2], x.dtype)
        self._shape = self._shape or shape
        rule = "must keep the dimensions and dtype of the first batch {} {} {}".format(*self._shape)
        require(shape == self._shape, "x", rule, "{} {} {}".format(*shape))
        # Copies: the caller may reuse its buffers before the shard is full.
        chunk = Chunk(np.array(x, order="C"), np.array(y, order="C"), None)
        if mask is not None:
            keep = np.array(as_mask(mask, x))
            if not keep.all():
                chunk.x[~keep], chunk.y[~keep] = 0, 0
                chunk = chunk._replace(mask=keep)
        require_finite(chunk.x, "x")
        require_finite(chunk.y, "y")
        return chunk

    def _flush(self) -> None:
        if not self._pending:
            return
        tokens = max(piece.x.shape[1] for piece in self._pending)
        masked = any(piece.mask is not None or piece.x.shape[1] < tokens for piece in self._pending)
        pieces = [_padded(piece, tokens, masked) for piece in self._pending]
        tensors = {"x": np.concatenate([p.x for p in pieces]), "y": np.concatenate([p.y for p in pieces])}
        if masked:
            tensors["mask"] = np.concatenate([p.mask for p in pieces if p.mask is not None])
        self._write(len(self._shards), tensors)
        self._shards.append((len(tensors["x"]), tokens, masked))
        self._pending, self._pending_bytes = [], 0

    def _rewrite(self, number: int, tokens: int, masked: bool) -> None:
        tensors, _ = read_tensors(self._temporary / shard_name(number))
        chunk = _padded(Chunk(tensors["x"], tensors["y"], tensors.get("mask")), tokens, masked)
        self._write(number, {k: v for k, v in chunk._asdict().items() if v is not None})

    def _write(self, number: int, tensors: Mapping[str, np.ndarray]) -> None:
        write_tensors(self._temporary / shard_name(number), tensors, {})

    def _manifest(self, tokens: int, masked: bool) -> Manifest:
        assert self._shape is not None
        dim, out_dim, dtype = self._shape
        shards = tuple((shard_name(i), shard[0]) for i, shard in enumerate(self._shards))
        draft = Manifest(
            dtype.name, self.num, tokens, dim, out_dim, masked, self.causal, "", shards, self.provenance,
            tuple(tuple(entry) for entry in self.words),
        )  # fmt: skip
        # The fingerprint is taken from the files as they will be read.
        parts = [open_shard(self._temporary / name, draft.expected(count)) for name, count in shards]
        return replace(draft, fingerprint=Examples(parts).fingerprint())


def require_new_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that already holds something, or one in a place that does not exist.

    >>> require_new_folder("/")
    Traceback (most recent call last):
    ValueError: folder: must not exist yet or be empty, got '/'
    """
    place = Path(folder)
    taken = os.path.lexists(place) and (not place.is_dir() or any(place.iterdir()))
    require(not taken, "folder", "must not exist yet or be empty", str(place))
    require(place.parent.is_dir(), "folder", "cannot write, the folder above must exist", str(place))


def _publish(temporary: Path, folder: Path) -> None:
    try:
        os.rename(temporary, folder)  # onto a missing or an empty folder only
        to_disk(folder.parent)
    except OSError as error:
        raise ValueError(f"folder: cannot write {folder} ({error.strerror or error})") from error


def _take(chunk: Chunk, rows: slice) -> Chunk:
    return Chunk(chunk.x[rows], chunk.y[rows], None if chunk.mask is None else chunk.mask[rows])


def _padded(chunk: Chunk, tokens: int, masked: bool) -> Chunk:
    """`chunk` with zero tokens appended up to `tokens`, and a mask if the data set has one."""
    n, k = chunk.x.shape[:2]
    mask = chunk.mask if chunk.mask is not None or not masked else np.ones((n, k), bool)
    if k == tokens:
        return chunk._replace(mask=mask)
    wide = ((0, 0), (0, tokens - k), (0, 0))
    assert mask is not None
    return Chunk(np.pad(chunk.x, wide), np.pad(chunk.y, wide), np.pad(mask, wide[:2]))
