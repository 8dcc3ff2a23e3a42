"""Arrays in a NumPy .npz file: examples x (n, k, d), y (n, k, d_out), perhaps mask (n, k), or what training reads.

What a member unpacks to is read from its header and compared with the file, with `memory` and with what is free before
anything is allocated. Members that are stored plainly (`np.savez`) can be memory-mapped where they lie in the archive.
What can fail: anything in the file that is damaged, too large or pickled is refused in one line.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy

from attnlearn._errors import require
from attnlearn._memory import require_room
from attnlearn._precision import promoted
from attnlearn.data._calibration import MAX_DEFLATE_RATIO
from attnlearn.data._examples import ArrayPart, Chunk
from attnlearn.data._shapes import as_floats, check_shapes

_LOCAL_HEADER = 30
"""Bytes of a zip member's local header before its name."""


class _Member(NamedTuple):
    """One array of the archive, as its headers describe it."""

    name: str
    info: zipfile.ZipInfo
    begin: int
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


def open_npz(path: Path, memory: int | None = None) -> ArrayPart:
    """The examples of `path`, checked for shape and dtype; plainly stored ones stay on disk."""
    arrays = read_npz(path, ("x", "y"), ("mask",), mapped=True, memory=memory)
    x, y = as_floats(arrays["x"], "x"), as_floats(arrays["y"], "y")
    check_shapes(x, y)
    mask = arrays.get("mask")
    if mask is not None:
        require(mask.dtype == np.bool_, "mask", "must be boolean", str(mask.dtype))
        require(mask.shape == x.shape[:2], "mask", f"must have shape {x.shape[:2]}", mask)
    x, y = promoted(x, y)
    return ArrayPart(Chunk(x, y, mask))


def read_npz(
    path: Path,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    *,
    mapped: bool = False,
    memory: int | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of these names, in at most `memory` bytes; with `mapped` those that can be are mapped, not read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive, needed, optional, mapped, memory)
    except _Refused as refusal:
        raise ValueError(str(refusal)) from refusal.__cause__
    except (
        Exception
    ) as error:  # zipfile and its decompressors raise a dozen kinds, and each of them means the same here
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise ValueError(f"path: must be a valid .npz file, got {path} ({reason})") from error


class _Refused(Exception):
    """One line for the user, which the catch-all for damaged archives must not rewrite."""


def _refuse(condition: bool, parameter: str, rule: str, value: Any) -> None:
    try:
        require(condition, parameter, rule, value)
    except ValueError as error:
        raise _Refused(str(error)) from error


def _read(
    path: Path,
    archive: zipfile.ZipFile,
    needed: Sequence[str],
    optional: Sequence[str],
    mapped: bool,
    memory: int | None,
) -> dict[str, np.ndarray]:
    names = set(archive.namelist())
    whole = all(f"{name}.npy" in names for name in needed)
    held = ", ".join(name.removesuffix(".npy") for name in sorted(names)[:6]) or "nothing"
    if not whole:
        saved = ", ".join(f"{name}={name}" for name in needed)
        raise _Refused(
            f"path: {path.name} must hold {' and '.join(needed)} (np.savez(path, {saved})), got {held}"
        )
    wanted = [name for name in (*needed, *optional) if f"{name}.npy" in names]
    members = [_member(path, archive, name) for name in wanted]
    stored = {m.name: mapped and m.info.compress_type == zipfile.ZIP_STORED for m in members}
    try:
        room = sum(m.info.file_size for m in members if not stored[m.name])
        require_room(room, "path", f"{path.name} unpacks", memory)
    except ValueError as error:
        raise _Refused(str(error)) from error
    return {m.name: _map(path, m) if stored[m.name] else _unpack(archive, m) for m in members}


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> _Member:
    info = archive.getinfo(f"{name}.npy")
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    _refuse(info.compress_type in kinds, name, "must be stored or deflated", info.compress_type)
    ratio = 1 if info.compress_type == zipfile.ZIP_STORED else MAX_DEFLATE_RATIO
    room = min(info.compress_size, path.stat().st_size) * ratio
    _refuse(info.file_size <= room, name, "must not claim more than it can unpack to", info.file_size)
    with archive.open(info) as handle:
        shape, fortran, dtype = _header(handle, name)
        begin = handle.tell()
    plain = dtype.kind in "fiub" and dtype.itemsize > 0
    _refuse(plain, name, "must hold numbers, not pickled objects or text", str(dtype)[:40])
    _refuse(0 not in shape and shape != (), name, "must not be empty", f"shape {shape}")
    fits = min(shape) >= 1 and begin + math.prod(shape) * dtype.itemsize == info.file_size
    _refuse(fits, name, "must be as long as its header says", info.file_size)
    return _Member(name, info, begin, shape, fortran, dtype)


def _header(handle: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        major, _ = npy.read_magic(handle)
        read = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}[major]
        return read(handle)
    except Exception as error:  # NumPy parses the header as Python, which can go wrong in as many ways
        raise zipfile.BadZipFile(f"{name} has no .npy header of format 1 or 2") from error


def _unpack(archive: zipfile.ZipFile, member: _Member) -> np.ndarray:
    """The array in memory, its checksum compared."""
    flat = np.empty(math.prod(member.shape), member.dtype)
    into, done = flat.data.cast("B"), 0
    with archive.open(member.info) as handle:
        handle.read(member.begin)
        while done < len(into) and (
            more := cast(io.BufferedIOBase, handle).readinto(into[done : done + 2**20])
        ):
            done += more
        _refuse(
            done == len(into) and not handle.read(1), member.name, "must be as long as its header says", done
        )
    return flat.reshape(member.shape, order="F" if member.fortran else "C")


def _map(path: Path, member: _Member) -> np.ndarray:
    """The array where it lies in the file, read-only."""
    info = member.info
    with path.open("rb") as raw:
        raw.seek(info.header_offset)
        local = raw.read(_LOCAL_HEADER)
    # The local header repeats name and extra field, with lengths of its own.
    start = (
        info.header_offset + _LOCAL_HEADER + sum(int.from_bytes(local[i : i + 2], "little") for i in (26, 28))
    )
    inside = start + info.file_size <= path.stat().st_size
    _refuse(inside, member.name, "must lie inside the file", info.file_size)
    order = "F" if member.fortran else "C"
    where = {"offset": start + member.begin, "shape": member.shape, "order": order}
    return np.asarray(np.memmap(path, member.dtype, mode="r", **where))
