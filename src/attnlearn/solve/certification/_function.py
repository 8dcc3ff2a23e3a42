"""C1: on at least a fraction 1 - q of the inputs the function error is at most eps, with confidence 1 - delta.

eps is the largest error among n independent units and q = ln(1/delta)/n, because P(all n errors lie in the best 1 - q) =
(1 - q)^n <= exp(-q n). Where less than all but q is asked for (`covered`), eps is the largest order statistic that shows it:
with j errors above it, P(Binomial(n, 1 - covered) <= j) <= delta; j depends on n alone. A unit is a sequence; a group where groups are given or identical sequences were merged; and certify
sequences that are near copies of each other are one. Units with a near copy on another side of the split show an error
but are no evidence, so they are not counted in n, nor is the share of units that may have relatives nobody saw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from attnlearn._certificate import Check, Claim, Status
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, largest_of_groups, unit_errors

INDEPENDENT = "the {unit}s are independent draws from one distribution"
UNITS = {"input": "inputs", "distinct input": "distinct inputs", "group": "groups (the worst input of each)"}


def function_claim(
    layer: Callable[[Any, Any], Any],
    held: Batch,
    scale: float,
    *,
    limit: float,
    delta: float = calibration.DELTA,
    unit: str = "input",
    where: str = "",
    name: str = "function error",
    drawn: bool = False,
    small: float = calibration.SMALL_ERROR,
    covered: float | None = None,
    assumes: tuple[str, ...] = (),
    more: float = 0.0,
) -> tuple[Claim, list[Check]]:
    """The claim and its checks.

    `limit` is the largest error that says anything. `where` names the inputs if it must. `drawn` says that we drew them independently
    ourselves. Outputs below the share `small` of `scale` count as that large. `assumes` is what the claim takes for granted beside. With
    `covered` the claim is about that fraction of the inputs, at a smaller error. `more` is added to every error, for what else may change an
    answer.
    """
    errors, independent = unit_errors(layer, held, scale, small) + more, independent_units(held)
    units = int((1 - held.hidden) * independent.sum())
    eps, uncovered = _claimed(errors, independent, units, covered, delta)
    fraction, floor = 1 - uncovered, small * scale
    checks = _checks(eps, limit, uncovered, independent)
    text = (
        f"{name} <= {eps:.3g} of an output's norm (of {floor:.3g} where the norm is smaller) "
        f"on at least {100 * fraction:.2f} % of {UNITS[unit]}{where}"
    )
    claim = Claim.stated(
        "C1",
        text,
        all(check.status is Status.HOLDS for check in checks),
        {
            "error": eps, "fraction": fraction, "examples": units, "floor": floor, "unit": unit,
            "histogram": histogram(errors),
        },
        1 - delta,
        assumes=(*(() if drawn else (INDEPENDENT.format(unit=unit),)), *assumes),
        scope={"fraction": fraction, "floor": floor},
    )  # fmt: skip
    return claim, checks


def histogram(errors: np.ndarray, bins: int = 24) -> dict[str, list[float]]:
    """How many errors lie between edges that are evenly spaced on a logarithmic axis; errors of 0 count with the smallest.

    >>> histogram(np.array([0.0, 1e-3, 1e-1]), 2)
    {'edges': [0.001, 0.01, 0.1], 'counts': [2, 1]}
    """
    positive = errors[errors > 0]
    least, most = (float(positive.min()), float(positive.max())) if positive.size else (1e-16, 1e-16)
    edges = np.geomspace(least, max(most, least * (1 + 1e-6)), bins + 1)
    counts = np.histogram(np.clip(errors, edges[0], edges[-1]), edges)[0]
    return {"edges": [float(f"{edge:.4g}") for edge in edges], "counts": counts.tolist()}


def _claimed(
    errors: np.ndarray, independent: np.ndarray, units: int, covered: float | None, delta: float
) -> tuple[float, float]:
    """The error that is claimed, and the fraction of inputs about which nothing is said, if `units` are evidence."""
    above = _allowed(units, covered, delta)
    if above is None or covered is None:
        return float(errors.max()), min(1.0, float(np.log(1 / delta) / max(units, 1)))
    return float(np.sort(errors[independent])[-1 - above]), 1 - covered


def _checks(eps: float, limit: float, uncovered: float, independent: np.ndarray) -> list[Check]:
    return [
        Check.compare("C1.error", eps, limit, unit="relative error", text="error that is claimed"),
        Check.compare(
            "C1.coverage", uncovered, calibration.UNCOVERED,
            unit="fraction of inputs", text="inputs about which nothing is said",
        ),
        Check.compare(
            "C1.copies", int(np.sum(~independent)), (1 - calibration.ENOUGH_SHARE) * len(independent),
            unit="units", text="certify units that repeat or nearly repeat others",
        ),
    ]  # fmt: skip


def _allowed(units: int, covered: float | None, delta: float) -> int | None:
    """How many errors may lie above the claimed one so that it covers the fraction `covered`; None: take the largest."""
    if covered is None:
        return None
    below = np.arange(units + 1)
    above = int(np.argmax(scipy.special.bdtr(below, units, 1 - covered) >= delta)) - 1
    return above if above >= 0 else None


def independent_units(held: Batch) -> np.ndarray:
    """Which units have no near copy elsewhere.

    >>> independent_units(Batch(np.zeros((3, 2, 1)), np.zeros((3, 2, 1)), copied=np.array([True, False, False])))
    array([False,  True,  True])
    """
    copied = np.zeros(held.num, bool) if held.copied is None else held.copied
    if held.groups is None:
        return ~copied
    return largest_of_groups(copied.astype(float), held.groups) == 0
