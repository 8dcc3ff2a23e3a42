"""Numbers as people read them: a few digits, powers of ten as powers, counts with commas."""

from __future__ import annotations

import math
from typing import Any

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def pretty(value: Any, digits: int = 2) -> str:
    """A number for running text; None and what is not finite become a dash.

    >>> pretty(2.24e-15), pretty(20000), pretty(0.25), pretty(None)
    ('2.2 × 10⁻¹⁵', '20,000', '0.25', '–')
    """
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**12 else pretty(float(value), digits)
    if not math.isfinite(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.{max(digits, 3)}g}" if abs(value) < 1000 else f"{value:,.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa} × {power(int(exponent))}"


def power(exponent: int) -> str:
    """A power of ten.

    >>> power(-15)
    '10⁻¹⁵'
    """
    return "10" + str(exponent).translate(_SUPERSCRIPT)


def cell(value: Any) -> str:
    """A value in a table: five digits, so that tables can be copied into a calculation.

    >>> cell(0.123456789), cell(None), cell(True), cell([1, 2])
    ('0.12346', '–', 'yes', '1, 2')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(entry) for entry in value)
    return str(value)


def seconds(value: float) -> str:
    """A duration.

    >>> seconds(0.0123), seconds(61.86), seconds(7384)
    ('12 ms', '1 min 2 s', '2 h 3 min')
    """
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {round(value % 60)} s"
    return f"{int(value // 3600)} h {round(value % 3600 / 60)} min"
