"""Examples in a NumPy .npz file: x (n, k, d), y (n, k, d_out), perhaps mask (n, k).

Members that are stored plainly (`np.savez`) are memory-mapped where they lie in the archive; compressed ones
are unpacked into memory after their size was checked. Pickled objects are refused.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from attnlearn._errors import require
from attnlearn._precision import FLOATS
from attnlearn.data._calibration import MAX_DEFLATE_RATIO
from attnlearn.data._examples import ArrayPart, Chunk

_LOCAL_HEADER = 30
"""Bytes of a zip member's local header before its name."""


def open_npz(path: Path) -> ArrayPart:
    """The arrays of `path`, checked for shape and dtype."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            missing = [name for name in ("x", "y") if f"{name}.npy" not in names]
            require(not missing, "path", f"{path.name} must hold x and y", sorted(names)[:6])
            wanted = [name for name in ("x", "y", "mask") if f"{name}.npy" in names]
            arrays = {name: _member(path, archive, name) for name in wanted}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"path: must be a valid .npz file, got {path} ({error})") from error
    chunk = Chunk(arrays["x"], arrays["y"], arrays.get("mask"))
    _check(chunk)
    return ArrayPart(chunk)


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as handle:
        major, _ = npy.read_magic(handle)
        require(major in (1, 2), name, "must be in .npy format 1 or 2", major)
        read = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, fortran, dtype = read(handle)
        require(not dtype.hasobject, name, "must not hold pickled objects", str(dtype))
        header = handle.tell()
        payload = math.prod(shape) * dtype.itemsize
        whole = min(shape, default=0) >= 1 and header + payload == info.file_size
        require(whole, name, "must be non-empty and as long as its header says", info.file_size)
        if info.compress_type != zipfile.ZIP_STORED:
            room = min(info.compress_size, path.stat().st_size) * MAX_DEFLATE_RATIO
            require(info.file_size <= room, name, "must not claim more than it can unpack to", info.file_size)
            flat = np.frombuffer(bytearray(handle.read()), dtype)
            return flat.reshape(shape, order="F" if fortran else "C")
    with path.open("rb") as raw:
        raw.seek(info.header_offset)
        local = raw.read(_LOCAL_HEADER)
    # The local header repeats name and extra field, with lengths of its own.
    start = (
        info.header_offset + _LOCAL_HEADER + sum(int.from_bytes(local[i : i + 2], "little") for i in (26, 28))
    )
    require(start + info.file_size <= path.stat().st_size, name, "must lie inside the file", info.file_size)
    order = "F" if fortran else "C"
    return np.asarray(np.memmap(path, dtype, mode="r", offset=start + header, shape=shape, order=order))


def _check(chunk: Chunk) -> None:
    x, y, mask = chunk
    for name, array in (("x", x), ("y", y)):
        require(array.ndim == 3, name, "must have three axes (sequences, tokens, coordinates)", array)
        require(array.dtype in FLOATS, name, "must be float32 or float64", str(array.dtype))
    require(y.shape[:2] == x.shape[:2], "y", f"must have shape {x.shape[:2]} before d_out", y)
    require(y.dtype == x.dtype, "y", f"must have the dtype of x ({x.dtype})", str(y.dtype))
    if mask is not None:
        require(mask.dtype == np.bool_, "mask", "must be boolean", str(mask.dtype))
        require(mask.shape == x.shape[:2], "mask", f"must have shape {x.shape[:2]}", mask)
