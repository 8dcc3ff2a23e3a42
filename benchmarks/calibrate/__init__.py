"""The measurements behind the constants of `attnlearn.solve` and `attnlearn.recovery`, one script for each kind, each under a minute.

    python -m benchmarks.calibrate            # all of them; --list names them
    python -m benchmarks.calibrate.claims     # one of them

Every script lists in `COVERS` the constants it measures, prints each with its value, and beside it what was measured again. A test
keeps the list complete: a constant that changes answers has its measurement here. A constant that divides two kinds of values is
printed with both, and with "separates" or "OVERLAPS".
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from functools import cache
from types import ModuleType

SCRIPTS = {
    "solve": ("claims", "tokens", "refinement", "diagnosis"),
    "recovery": ("signals", "moment", "wide", "student", "fit", "limits"),
}
"""The package whose constants are measured, and the scripts that do it."""
NAMES = tuple(name for names in SCRIPTS.values() for name in names)


@cache
def script(name: str) -> ModuleType:
    """The module of a script."""
    return importlib.import_module(f"benchmarks.calibrate.{name}")


@cache
def constants(package: str) -> ModuleType:
    """The constants of a package."""
    return importlib.import_module(f"attnlearn.{package}._calibration")


def covered(package: str = "solve") -> set[str]:
    """Every constant of a package that some script measures."""
    return {constant for name in SCRIPTS[package] for constant in script(name).COVERS}


def show(constant: str, measured: str, package: str = "solve", key: str | int | None = None) -> None:
    """One line: a constant, its value, and what was measured. `key` chooses one entry of a constant that has several."""
    value = getattr(constants(package), constant)
    name, value = (constant, value) if key is None else (f"{constant}[{key}]", value[key])
    numbers = value if isinstance(value, tuple) else (value,)
    print(f"{name:<27} {', '.join(f'{number:.3g}' for number in numbers):>10}   {measured}", flush=True)


def cut(
    constant: str,
    what: str,
    *sides: tuple[str, list[float]],
    key: str | int | None = None,
    package: str = "recovery",
) -> None:
    """One line for a constant that divides values: those that should be below it, and those that should be above.

    Each side has a name and its values.
    """
    value = getattr(constants(package), constant)
    value = value if key is None else value[key]
    (low, below), (high, above) = sides
    fits = max(below) <= value <= min(above)
    said = f"{what}: {low} {span(below, 3)} | {high} {span(above, 3)}: {'separates' if fits else 'OVERLAPS'}"
    show(constant, said, package, key)


def span(values, digits: int = 2) -> str:
    """The smallest and the largest of some numbers."""
    low, high = f"{min(values):.{digits}g}", f"{max(values):.{digits}g}"
    return low if low == high else f"{low} to {high}"


@contextlib.contextmanager
def instead(**values: float) -> Iterator[None]:
    """Other values of constants of `recover`, for a while."""
    module = constants("recovery")
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
