"""Build the API reference into a folder: python docs/build_reference.py build/reference (or `make docs`).

A warning ends the build: a name that cannot be resolved or documented is a mistake in the package.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
import warnings
from pathlib import Path

LISTED = ("attnlearn.convert", "attnlearn.data", "attnlearn.hard", "attnlearn.oracle")
"""Modules that `attnlearn.__all__` names: pdoc finds them by itself."""

MODULES = (
    "attnlearn",
    "attnlearn.engine",
    "attnlearn.extraction",
    "attnlearn.reporting",
    "attnlearn.training",
)


def main(folder: str) -> None:
    """Write one page per module into `folder`."""
    import pdoc

    warnings.simplefilter("error")
    for name in (*MODULES, *LISTED):
        resolve_named_tuples(importlib.import_module(name))
    pdoc.render.configure(docformat="markdown", math=False, show_source=False, search=True)
    pdoc.pdoc(*MODULES, output_directory=Path(folder))
    print(f"wrote {folder}/index.html")


def resolve_named_tuples(module: object) -> None:
    """Give constructors of named tuples the types their class has: they live in a namespace without our imports."""
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isclass(value) and hasattr(value, "_fields"):
            value.__new__.__annotations__.update(typing.get_type_hints(value))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "build/reference")
