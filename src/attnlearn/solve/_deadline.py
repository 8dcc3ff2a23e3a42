"""Whether the time for a long loop is over.

A deadline is a value of `time.monotonic()`, or None for no limit. Loops ask after every product, so that none of them runs on
for long after its deadline.
"""

from __future__ import annotations

from time import monotonic as clock


def passed(deadline: float | None) -> bool:
    """Whether the deadline lies in the past.

    >>> passed(None), passed(0.0)
    (False, True)
    """
    return deadline is not None and clock() >= deadline
