"""One shard: a safetensors file with x (n, k, d), y (n, k, d_out) and perhaps mask (n, k), memory-mapped.

Nothing in the file is trusted: its size, its header and every shape and offset are compared before a byte of
payload is mapped, and nothing is allocated but the header.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn._errors import describe, one_line
from attnlearn._files import parse_json
from attnlearn.data._calibration import MAX_HEADER_BYTES
from attnlearn.data._examples import Chunk

DTYPES = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "BOOL": np.dtype(np.bool_)}


class Shard:
    """A checked shard; `open` maps it."""

    def __init__(self, path: Path, layout: dict[str, tuple[np.dtype, tuple[int, ...], int]]) -> None:
        self.path = path
        self.num = layout["x"][1][0]
        self._layout = layout

    def open(self) -> Chunk:
        """x, y and mask as read-only memory maps."""
        arrays = {
            name: np.asarray(np.memmap(self.path, dtype, mode="r", offset=offset, shape=shape))
            for name, (dtype, shape, offset) in self._layout.items()
        }
        return Chunk(arrays["x"], arrays["y"], arrays.get("mask"))


def open_shard(path: Path, expected: dict[str, tuple[str, tuple[int, ...]]]) -> Shard:
    """The shard at `path` if it holds exactly the `expected` tensors (name -> dtype code, shape)."""

    def refuse(reason: str) -> ValueError:
        return ValueError(f"path: must be a valid shard, got {path} ({one_line(reason)})")

    if not path.is_file():
        raise refuse("no such file")
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            length = int.from_bytes(handle.read(8), "little")
            text = handle.read(length) if length <= min(size - 8, MAX_HEADER_BYTES) else None
    except OSError as error:
        raise refuse(error.strerror or str(error)) from error
    if text is None:
        raise refuse(f"header of {length} bytes in a file of {size}")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise refuse(f"header: {error}") from error
    if not isinstance(header, dict):
        raise refuse("header is not an object")
    header.pop("__metadata__", None)
    if set(header) != set(expected):
        raise refuse(f"holds {describe(sorted(header)[:4])}, expected {sorted(expected)}")
    layout, spans = {}, []
    for name, (code, shape) in expected.items():
        dtype, span = DTYPES[code], _span(header[name], code, shape)
        if isinstance(span, str):
            raise refuse(f"{name}: {span}")
        layout[name] = (dtype, shape, 8 + length + span[0])
        spans.append(span)
    spans.sort()
    ends = [0, *(end for _, end in spans)]
    if [begin for begin, _ in spans] != ends[:-1]:
        raise refuse("tensors overlap or leave gaps")
    if 8 + length + ends[-1] != size:
        raise refuse(f"{size} bytes, expected {8 + length + ends[-1]}: truncated or padded")
    return Shard(path, layout)


def _span(entry: Any, code: str, shape: tuple[int, ...]) -> tuple[int, int] | str:
    """(begin, end) of a tensor that is what it should be, otherwise the reason why not."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return "malformed entry"
    if entry["dtype"] != code:
        return f"dtype {str(entry['dtype'])[:20]}, expected {code}"
    if entry["shape"] != list(shape):
        return f"shape {str(entry['shape'])[:60]}, expected {list(shape)}"
    offsets = entry["data_offsets"]
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(value) is int for value in offsets)):
        return "malformed offsets"
    begin, end = offsets
    if begin < 0 or end - begin != math.prod(shape) * DTYPES[code].itemsize:
        return f"offsets {begin}..{end} do not fit its shape"
    return begin, end
