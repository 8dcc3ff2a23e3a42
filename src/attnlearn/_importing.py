"""Functions of the user by name: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION. They are the user's code, and are executed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def resolve(spec: str, parameter: str) -> Any:
    """What `spec` names; errors name `parameter`.

    >>> resolve("math:sqrt", "factory")(9.0)
    3.0
    >>> resolve("math", "factory")
    Traceback (most recent call last):
    ValueError: factory: must look like FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, got math
    """
    place, colon, name = spec.rpartition(":")
    if not colon:
        raise ValueError(
            f"{parameter}: must look like FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, got {spec}"
        )
    try:
        module = _module_from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        return getattr(module, name)
    except (ImportError, AttributeError, OSError) as error:
        raise ValueError(
            f"{parameter}: must name a function that can be imported, got {spec} ({error})"
        ) from error


def _module_from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
