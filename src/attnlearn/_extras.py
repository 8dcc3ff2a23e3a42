"""Packages that only some verbs need: each comes with an extra, and a missing one is refused in one line before any work.

Cost: `require_extra` imports the packages, which the caller needs anyway; `installed` only looks for them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from attnlearn._interrupts import deferred_interrupts

EXTRAS = {
    "train": ("jax", "piqp"),
    "sculpt": ("jax", "highspy", "piqp"),
    "torch": ("torch",),
    "dask": ("dask", "distributed"),
    "sklearn": ("sklearn",),
    "report": ("matplotlib", "pandas"),
}
"""What each extra of pyproject.toml brings, by the names under which it is imported."""


class MissingExtra(ImportError, ValueError):
    """A package of an extra is not installed: an `ImportError` of a module, a `ValueError` of an argument.

    >>> issubclass(MissingExtra, ImportError), issubclass(MissingExtra, ValueError)
    (True, True)
    """


def require_extra(parameter: str, extra: str, packages: tuple[str, ...] = ()) -> None:
    """Refuse `parameter` in one line unless the packages of `extra` (or those of them that are named) can be imported.

    >>> require_extra("method", "sculpt")
    """
    for package in packages or EXTRAS[extra]:
        try:
            with deferred_interrupts():
                import_module(package)
        except ImportError as error:
            why = (
                "is not installed" if getattr(error, "name", None) == package else f"fails to import: {error}"
            )
            how = f"pip install 'attnlearn[{extra}]'"
            raise MissingExtra(f"{parameter}: needs {package}, which {why} ({how})", name=package) from error


def installed(extra: str) -> bool:
    """Whether all packages of `extra` are there; none of them is imported.

    >>> isinstance(installed("torch"), bool)
    True
    """
    return all(_there(package) for package in EXTRAS[extra])


def _there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
