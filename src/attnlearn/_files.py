"""Reading and writing files so that nothing half-written stays behind and nothing hostile gets in."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


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
    if target.is_dir():
        raise ValueError(f"path: must be a file to write, got the directory {target}")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise ValueError(f"path: cannot write {target} ({error.strerror})") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; a result is as readable as any file the user writes.
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        raise ValueError(f"path: cannot write {target} ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def existing_file(path: str | os.PathLike[str], parameter: str = "path") -> Path:
    """`path` as a readable regular file, or one clear line why not."""
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"{parameter}: must be a file, got the directory {target}")
    if not target.is_file():
        raise ValueError(f"{parameter}: no such file, got {target}")
    return target


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_tensors(
    path: str | os.PathLike[str], names: Iterable[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The named tensors (default: all) of a safetensors file, and its metadata.

    The library checks header size, offsets and total length before it allocates; whatever it refuses is
    reported as one line. bfloat16 and float16 arrive as float32, which holds them exactly.
    """
    import ml_dtypes

    with _safetensors_handle(path) as handle:
        metadata = handle.metadata() or {}
        wanted = handle.keys() if names is None else names
        tensors = {name: handle.get_tensor(name) for name in wanted}
    widened = {
        name: tensor.astype(np.float32) if tensor.dtype in (ml_dtypes.bfloat16, np.float16) else tensor
        for name, tensor in tensors.items()
    }
    return widened, dict(metadata)


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
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"path: must be a valid safetensors file, got {target} ({first})") from error


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file, atomically."""
    from safetensors.numpy import save_file

    whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(whole, temporary, metadata=dict(metadata))
