"""C1: on at least a fraction 1 - q of the inputs the function error is at most eps, with confidence 1 - delta.

eps is the largest error among n independent units and q = ln(1/delta)/n, because P(all n errors lie in the best 1 - q) =
(1 - q)^n <= exp(-q n). A unit is a sequence; a group where groups are given or identical sequences were merged; and certify
sequences that are near copies of each other are one. Units with a near copy on another side of the split show an error
but are no evidence, so they are not counted in n.
"""

from __future__ import annotations

import numpy as np

from attnlearn._certificate import Check, Claim, Status
from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._held import Held, unit_errors

INDEPENDENT = "the {unit}s are independent draws from one distribution"
UNITS = {"input": "inputs", "distinct input": "distinct inputs", "group": "groups (the worst input of each)"}


def function_claim(
    layer: AttentionLayer,
    held: Held,
    scale: float,
    *,
    limit: float,
    delta: float = calibration.DELTA,
    unit: str = "input",
    where: str = "",
    name: str = "function error",
    drawn: bool = False,
    small: float = calibration.SMALL_EXAMPLE,
) -> tuple[Claim, list[Check]]:
    """The claim and its checks; `limit` is the largest error that says anything, `where` names the inputs if it must, and
    `drawn` says that we drew them independently ourselves. Outputs below the share `small` of `scale` count as that large.
    """
    errors = unit_errors(layer, held, scale, small)
    eps, units = float(errors.max()), independent_units(held)
    uncovered = min(1.0, float(np.log(1 / delta) / units)) if units else 1.0
    fraction, floor = 1 - uncovered, small * scale
    checks = [
        Check.compare("C1.error", eps, limit, unit="relative error", text="largest error on certify examples"),
        Check.compare(
            "C1.coverage", uncovered, calibration.UNCOVERED,
            unit="fraction of inputs", text="inputs about which nothing is said",
        ),
        Check.compare(
            "C1.copies", held.num - units if held.groups is None else len(errors) - units, len(errors) / 2,
            unit="units", text="certify units that repeat or nearly repeat others",
        ),
    ]  # fmt: skip
    text = (
        f"{name} <= {eps:.3g} of an output's norm (of {floor:.3g} where the norm is smaller) "
        f"on at least {100 * fraction:.2f} % of {UNITS[unit]}{where}"
    )
    claim = Claim.stated(
        "C1",
        text,
        all(check.status is Status.HOLDS for check in checks[:2]),
        {"error": eps, "fraction": fraction, "examples": units, "floor": floor, "unit": unit},
        1 - delta,
        assumes=() if drawn else (INDEPENDENT.format(unit=unit),),
        scope={"fraction": fraction, "floor": floor},
    )
    return claim, checks


def independent_units(held: Held) -> int:
    """Units without a near copy elsewhere.

    >>> independent_units(Held(np.zeros((3, 2, 1)), np.zeros((3, 2, 1)), copied=np.array([True, False, False])))
    2
    """
    copied = np.zeros(held.num, bool) if held.copied is None else held.copied
    if held.groups is None:
        return int(np.sum(~copied))
    return len(np.setdiff1d(held.groups, held.groups[copied]))
