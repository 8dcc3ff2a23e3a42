"""The measurements behind the constants of `attnlearn.solve`, one script for each kind, each under a minute.

    python -m benchmarks.calibrate.claims
    python -m benchmarks.calibrate.tokens
    python -m benchmarks.calibrate.refinement
    python -m benchmarks.calibrate.diagnosis

Every script lists in `COVERS` the constants it measures, prints each with its value, and beside it what was measured again. A test
keeps the list complete: a constant that changes answers has its measurement here.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from attnlearn.solve import _calibration as calibration

NAMES = ("claims", "tokens", "refinement", "diagnosis")


@cache
def script(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.calibrate.{name}")


def covered() -> set[str]:
    """Every constant that some script measures."""
    return {constant for name in NAMES for constant in script(name).COVERS}


def show(constant: str, measured: str) -> None:
    """One line: a constant, its value, and what was measured."""
    print(f"{constant:<22} {getattr(calibration, constant):>8.3g}   {measured}", flush=True)


def span(values) -> str:
    """The smallest and the largest of some numbers."""
    return f"{min(values):.2g} to {max(values):.2g}"
