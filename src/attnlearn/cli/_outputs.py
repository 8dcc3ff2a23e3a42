"""Where a command writes: checked before its work starts, and at the end as much as possible is written.

A path that cannot be written, or a picture that cannot be drawn for want of a package, is refused in one line while
nothing is lost yet. When a write fails later (a full disk), everything else is still written and the verdict printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

PICTURES = (".png", ".pdf", ".svg")
"""Endings that a picture's file may have."""


def require_outputs(
    *,
    json: str | None = None,
    output: Path | None = None,
    report: Path | None = None,
    plot: Path | None = None,
    checkpoint: Path | None = None,
    engine: str | None = None,
) -> None:
    """Refuse what could not be written or imported at the end, each named by its option.

    >>> require_outputs(json="-", output=Path("/no/such/folder/layer.safetensors"))
    Traceback (most recent call last):
    ValueError: output: cannot write /no/such/folder/layer.safetensors (No such file or directory)
    """
    from attnlearn._errors import require

    named = {
        "output": output,
        "json": None if json in (None, "-") else Path(json),
        "report": report,
        "plot": plot,
    }
    seen: dict[str, str] = {}
    for name, path in named.items():
        if path is None:
            continue
        stream = _require_file(name, path)
        other = seen.get(os.path.abspath(path))
        require(stream or other is None, name, f"must not be the file of --{other}", path)
        seen[os.path.abspath(path)] = name
    if plot is not None:
        require(plot.suffix in PICTURES, "plot", f"must end in {', '.join(PICTURES)}", plot)
        _require_package("plot", "matplotlib", "report")
    if checkpoint is not None:
        _require_folder(checkpoint)
    if engine is not None and engine.startswith("dask:"):
        _require_package("engine", "distributed", "dask")


def _require_file(name: str, path: Path) -> bool:
    """Whether `path` is a device or a pipe; refused under its option's name when it cannot be written."""
    from attnlearn._files import is_stream, require_writable

    try:
        require_writable(path)
        return is_stream(path)
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix('path: ')}") from error


def _require_folder(checkpoint: Path) -> None:
    from attnlearn._errors import require

    whole = Path(os.path.abspath(checkpoint))
    above = next(folder for folder in (whole, *whole.parents) if os.path.lexists(folder))
    require(above.is_dir(), "checkpoint", f"must be a folder, and {above} is none", checkpoint)
    rule = f"must be in a folder to write to, {above} is none"
    require(os.access(above, os.W_OK | os.X_OK), "checkpoint", rule, checkpoint)


def _require_package(name: str, package: str, extra: str) -> None:
    from attnlearn._extras import require_extra

    require_extra(name, extra, (package,))


class Writes:
    """Writes at the end of a command, each tried whatever became of the others.

    >>> writes = Writes()
    >>> writes.attempt(lambda: int("x")), writes.attempt(lambda: None)
    (False, True)
    >>> writes.end()
    Traceback (most recent call last):
    ValueError: invalid literal for int() with base 10: 'x'
    """

    def __init__(self) -> None:
        self.failed: list[Exception] = []

    def attempt(self, write: Callable[[], Any]) -> bool:
        """Whether `write` succeeded; if not, `end` will say why."""
        try:
            write()
        except Exception as error:  # whatever it is, the other results must not be lost with it
            self.failed.append(error)
            return False
        return True

    def end(self) -> None:
        """Raise what failed, in one line; an error that is not about files first."""
        for error in self.failed:
            if isinstance(error, BrokenPipeError) or not isinstance(error, ValueError | OSError):
                raise error
        if self.failed:
            raise ValueError("; ".join(str(error) for error in self.failed)) from self.failed[0]
