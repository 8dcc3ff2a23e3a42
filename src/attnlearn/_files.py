"""Reading and writing files so that nothing half-written stays behind and nothing hostile gets in.

A result appears under its name by one rename, after its bytes and then its folder have reached the disk. What exists and
is no regular file (a device, a pipe) is written to and stays what it is. The umask is the caller's and is never set.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn._errors import one_line
from attnlearn._memory import require_room

JSON_DEPTH = 64
"""Deepest nesting of JSON that is read: a result has about 10 levels, and Python's own recursion ends near 500."""

JSON_EXPANSION = 30
"""Bytes of Python objects for a byte of JSON, at worst: {"":0}, is 7 bytes and becomes a dictionary of 184 and its place."""

MIDDLE = 100
"""Characters of a name that its temporary sibling repeats: with the rest it stays below the 255 of a file system."""

_STREAMS = re.compile(r"/dev/(std(in|out|err)|fd/.*)|/proc/.*")
_CODES = {"f8": "F64", "f4": "F32", "f2": "F16", "b1": "BOOL"} | {
    f"{kind}{size}": f"{kind.upper()}{8 * size}" for kind in "iu" for size in (1, 2, 4, 8)
}


class CannotWrite(ValueError):
    """A file could not be written: no such folder, no permission, no space.

    >>> issubclass(CannotWrite, ValueError)
    True
    """

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"path: cannot write {path} ({error.strerror or error})")


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary sibling of `path`, renamed to it on success and removed on failure.

    >>> folder = tempfile.mkdtemp()
    >>> with atomic_path(Path(folder) / "a.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> (Path(folder) / "a.txt").read_text()
    'whole'
    """
    target = Path(path)
    straight = is_stream(target)
    temporary = _new_file(Path(tempfile.gettempdir()) / target.name if straight else target)
    try:
        yield temporary
        if straight:
            with temporary.open("rb") as whole, target.open("wb") as stream:
                shutil.copyfileobj(whole, stream)
        else:
            to_disk(temporary)
            os.replace(temporary, target)
            to_disk(target.parent)
    except OSError as error:
        raise CannotWrite(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether `path` is a device, a pipe or an open file of a process, which no rename may replace.

    >>> is_stream(Path("/dev/null")), is_stream(Path("new.json"))
    (True, False)
    """
    if path.is_dir():
        raise ValueError(f"path: must be a file to write, got the directory {path}")
    return _STREAMS.fullmatch(os.path.abspath(path)) is not None or (path.exists() and not path.is_file())


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuse now what `atomic_path` could not write later; an existing file is left as it is.

    >>> require_writable("/no/such/folder/result.json")
    Traceback (most recent call last):
    attnlearn._files.CannotWrite: path: cannot write /no/such/folder/result.json (No such file or directory)
    """
    target = Path(path)
    if not is_stream(target):
        _new_file(target).unlink()
    elif not os.access(target, os.W_OK):
        raise CannotWrite(target, PermissionError(13, "Permission denied"))


def temporary_name(name: str) -> str:
    """A hidden name beside `name` that nobody else uses; `is_temporary` recognises it.

    >>> is_temporary(temporary_name("a.json")), is_temporary(".notes.tmp")
    (True, False)
    """
    return f".{name[:MIDDLE]}.{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Whether `temporary_name` made `name`."""
    return re.fullmatch(r"\..+\.[0-9a-f]{16}\.tmp", name) is not None


def _new_file(target: Path) -> Path:
    """A new empty file beside `target`, as readable as any that the user makes."""
    temporary = target.parent / temporary_name(target.name)
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise CannotWrite(target, error) from error
    return temporary


def to_disk(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk; some file systems cannot say so of folders."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


def existing_file(path: str | os.PathLike[str]) -> Path:
    """`path` as a readable regular file, or one clear line why not."""
    target = Path(path)
    try:
        mode = target.stat().st_mode
    except (OSError, ValueError):  # a name with a zero byte is a ValueError
        mode = 0
    if stat.S_ISDIR(mode):
        raise ValueError(f"path: must be a file, got the directory {target} ({_inside(target)})")
    if not stat.S_ISREG(mode):
        raise ValueError(f"path: no such file, got {target}")
    return target


def _inside(folder: Path) -> str:
    """What a folder that was given in the place of a file holds, and what to do with it."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return "which cannot be read"
    if "manifest.json" in names:
        return "recorded examples, which explain, conditions, recover and compress read"
    likely = [name for name in names if name.endswith((".safetensors", ".json")) and "config" not in name]
    some = ", ".join(likely[:4]) + (", ..." if len(likely) > 4 else "")
    return f"give one of its files: {some}" if likely else "which holds no .safetensors or .json file"


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """The value of a JSON text from anywhere; a `ValueError` of a few words when it is none or nested too deep.

    With `finite` numbers that Python reads as NaN or infinity (NaN, 1e999) are refused too.

    >>> parse_json('{"a": [1]}')
    {'a': [1]}
    >>> parse_json(100_000 * "[")
    Traceback (most recent call last):
    ValueError: nested deeper than 64
    """
    try:
        strict: dict[str, Any] = {"parse_constant": _finite, "parse_float": _finite} if finite else {}
        value = json.loads(text, **strict)
    except RecursionError:
        raise ValueError(f"nested deeper than {JSON_DEPTH}") from None
    except ValueError as error:
        raise ValueError("not JSON") from error
    level: list[Any] = [value]
    for _ in range(JSON_DEPTH):
        inner = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        level = [child for part in inner if isinstance(part, Iterable) for child in part]
        level = [child for child in level if isinstance(child, dict | list)]
        if not level:
            return value
    raise ValueError(f"nested deeper than {JSON_DEPTH}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


def read_json(path: Path, most: int, *, finite: bool = False) -> Any:
    """The JSON in a regular file of at most `most` bytes; a `ValueError` of a few words otherwise."""
    try:
        size = path.stat().st_size
        if size > most:
            raise ValueError(f"{size} bytes, more than {most} bytes")
        require_room(JSON_EXPANSION * size, "path", "its JSON may grow")
        return parse_json(path.read_bytes(), finite=finite)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def read_tensors(
    path: str | os.PathLike[str], names: Iterable[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The named tensors (default: all) of a safetensors file, and its metadata.

    The library checks header size, offsets and total length before it allocates; whatever it refuses, and what would
    not fit into memory, is reported as one line. bfloat16 and float16 arrive as float32, which holds them exactly.
    """
    import ml_dtypes

    shapes, metadata = read_tensor_shapes(path)
    wanted = list(shapes if names is None else names)
    require_room(sum(8 * math.prod(shapes.get(name, ())) for name in wanted), "path", "its tensors grow")
    with _safetensors_handle(path) as handle:
        tensors = {name: handle.get_tensor(name) for name in wanted}
    widened = {
        name: tensor.astype(np.float32) if tensor.dtype in (ml_dtypes.bfloat16, np.float16) else tensor
        for name, tensor in tensors.items()
    }
    return widened, metadata


def read_tensor_shapes(
    path: str | os.PathLike[str],
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The names and shapes in a safetensors file, and its metadata, without reading any tensor."""
    with _safetensors_handle(path) as handle:
        shapes = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
        return shapes, dict(handle.metadata() or {})


@contextmanager
def _safetensors_handle(path: str | os.PathLike[str]) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    target = existing_file(path)
    try:
        with safe_open(target, framework="numpy") as handle:
            yield handle
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError) as error:
        first = one_line(str(error) or type(error).__name__, 200)
        raise ValueError(f"path: must be a valid safetensors file, got {target} ({first})") from error


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file, atomically; the same tensors and metadata are the same bytes.

    The library writes metadata in the order of a hash map, which differs from run to run; here they are sorted.
    """
    whole = {name: _plain(tensor) for name, tensor in tensors.items()}
    order = sorted(whole, key=lambda name: (-whole[name].itemsize, name))  # every tensor is aligned
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    begin = 0
    for name in order:
        array = whole[name]
        end = begin + array.nbytes
        code = _CODES[array.dtype.str[1:]]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            handle.write(whole[name].reshape(-1).data.cast("B") if whole[name].size else b"")


def _plain(tensor: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(tensor)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
