"""What a run will take, said before it starts: memory and time.

Memory is that of the whole process beside the caller's own arrays: the interpreter with its libraries, whitened rows
that the moment keeps (never more than a fixed size, above it they are recomputed in every pass), and the examples that
the fit and the certificate hold, whose number depends on the layer and not on the data. Time counts the products of the moment,
of the fit and of the certificate, at the speed of one matrix product measured here.

Both need the number of heads and their rank. `explain` takes a first look at the moment and plans for what that shows. `recover` knows
only the signals when it plans: it plans for four heads of full rank where the moment comes first, and for eight where the wide search
does, and plans again once it knows the heads, or that the outputs carry errors. With errors the fit and the certificate use every example;
outputs in half precision show that beforehand, others only after a fit. Ill-conditioned layers take more products, which are not planned for.
Measured seconds of one core, a start of the wide search and its pruning take about eight times the fit, the certificate twice the fit. In
many directions the search is a stochastic descent and Gauss-Newton on factors, whose operations are counted (`wide.student_work`).
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn.data import Examples
from attnlearn.engine._progress import clock
from attnlearn.engine._threads import own_threads
from attnlearn.recovery import _calibration as calibration
from attnlearn.scores import Bilinear
from attnlearn.solve._calibration import SIDE_MOST, TRIES
from attnlearn.solve._chunks import cache_bytes
from attnlearn.solve._unknowns import sequences_wanted, unknowns

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


@dataclass(frozen=True)
class Plan:
    """Expected needs of a run; `heads_supported` is how many heads of full rank the examples could determine.

    `seconds_with_errors` is what the run takes if the outputs carry errors, from which every example and many more fits tell the heads.

    >>> Plan(20_000, 1_000_000_000, 30.0, 90.0, 12, None).fits(500_000_000)
    False
    """

    examples: int
    memory_bytes: int
    seconds: float
    seconds_with_errors: float
    heads_supported: int
    memory_limit: int | None

    def fits(self, limit: int | None) -> bool:
        """Whether the expected memory is within the limit."""
        return limit is None or self.memory_bytes <= limit

    def figures(self) -> dict[str, Any]:
        """For a line of progress."""
        return {
            "examples": self.examples,
            "memory": f"{self.memory_bytes / 1e9:.2f} GB",
            "time": f"about {clock(self.seconds)}",
            "with errors": f"about {clock(self.seconds_with_errors)}",
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return asdict(self)


class Size(NamedTuple):
    """The layer that is planned for, and the examples that the moment would read (None: as equal heads would ask for).

    `wide`: whether the wide search takes the place of the moment. `student`: operations of that search in many directions.
    `proposed`: whether a proposer has found it already. `errors`: whether the outputs are known to carry errors.
    """

    heads: int
    rank: int | None = None
    moment_examples: int | None = None
    wide: bool = False
    student: float | None = None
    proposed: bool = False
    errors: bool = False


class Work(NamedTuple):
    """Seconds of each part, and of what errors in the outputs ask for beyond it."""

    propose: float
    fit: float
    certify: float
    errors: float

    @property
    def exact(self) -> float:
        """Seconds of all parts where outputs are exact."""
        return calibration.PLANNED_REST + self.propose + self.fit + self.certify


def parse_memory(memory: int | float | str | None) -> int | None:
    """Bytes from a number or a text such as "1.5GB" or "900 MiB".

    >>> parse_memory("1.5GB"), parse_memory(2**20), parse_memory(None)
    (1500000000, 1048576, None)
    """
    if memory is None:
        return None
    rule = 'must be a positive number of bytes, or a text such as "1.5GB" or "900 MiB"'
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?I?B?)\s*", str(memory).upper())
    require(match is not None and not isinstance(memory, bool), "memory", rule, memory)
    assert match is not None
    size = int(float(match[1]) * _UNITS.get(match[2], 0))
    require(size >= 1, "memory", rule, memory)
    return size


def make_plan(
    examples: Examples, fit: int, size: Size, drawn: bool, memory: int | float | str | None
) -> Plan:
    """The plan of a run on these examples, or the one-line refusal when it does not fit into `memory`."""
    limit = parse_memory(memory)
    equations = fit * examples.tokens * examples.out_dim
    one = unknowns(1, examples.dim, examples.out_dim)
    parts = work(examples, fit, size)
    plan = Plan(
        examples.num,
        _memory(examples, fit, size, drawn),
        parts.exact + (parts.errors if size.errors else 0.0),
        parts.exact + parts.errors,
        int(equations / (calibration.EQUATIONS_PER_UNKNOWN * one)),
        limit,
    )
    remedy = (
        f"must be at least {plan.memory_bytes / 1e9:.2f} GB for this run (give fewer examples or tokens a sequence, "
        "or num_heads if you know it)"
    )
    require(plan.fits(limit), "memory", remedy, memory)
    return plan


def work(examples: Examples, fit: int, size: Size) -> Work:
    """Seconds that the moment, the fit and the certificate should take on this machine."""
    k, d, o, heads = examples.tokens, examples.dim, examples.out_dim, size.heads
    speed = _speed()
    # The weakest of m equal heads stands (1/2) sqrt((k - 1) N / (m d)) floors high on N sequences.
    asked = (2 * calibration.CLEAR) ** 2 * heads * d / max(1, k - 1)
    read = min(fit, size.moment_examples or max(asked, calibration.LEAST_ROWS // 4))
    one = 4 * (d * o + 2 * k * d + d * d)  # one vector, one row, both products of a pass
    moment = calibration.SPARE * read * k * one * max(heads + calibration.SPARE, calibration.VECTORS)
    rows = _fit_rows(examples, fit, size)
    # One product for one row and head; the scores of factors move with both of them.
    product = 4 * d * (min(d, 2 * (size.rank or d)) + o) + calibration.ELEMENTWISE * k
    products = calibration.MANY_PRODUCTS * rows * heads * product
    eliminations = 2 * calibration.SHORT_STEPS * rows * (heads * d) ** 2
    fitted = (products + eliminations) / speed
    every = k * min(fit, max(calibration.LEAST_ROWS, calibration.REFINE_BYTES // (8 * k * (d + o))))
    noisy = calibration.NOISY_PRODUCTS * (min(heads, TRIES) + calibration.SPARE) * every * heads * product
    errors = fitted * every / rows + noisy / speed
    if size.proposed:
        proposed = 0.0
    elif size.student is not None:
        proposed = size.student / speed
    elif size.wide:
        proposed = calibration.SHORT_STEPS * fitted
    else:
        proposed = (moment + 4 * read * k * d * d) / speed
    return Work(proposed, fitted, calibration.CLEAR * fitted, errors)


def _fit_rows(examples: Examples, fit: int, size: Size) -> float:
    """Rows that a fit uses when the outputs carry no noise."""
    d = examples.dim
    a = np.broadcast_to(np.float32(0), (size.heads, d, size.rank or d))
    b = None if size.rank is None else a
    scores = Bilinear(a, b, np.broadcast_to(np.float32(0), (size.heads, d)))
    return min(fit, sequences_wanted(scores, examples.out_dim, examples.tokens, False)) * examples.tokens


def _memory(examples: Examples, fit: int, size: Size, drawn: bool) -> int:
    k, d, o = examples.tokens, examples.dim, examples.out_dim
    values = k * (d + o)
    cached = min(4 * fit * values, calibration.CACHE_BYTES)
    wanted = calibration.PLENTY * unknowns(size.heads, d, o, size.rank) / (k * o)
    refined = calibration.REFINE_COPIES * 8 * min(fit, max(calibration.LEAST_ROWS, wanted)) * values
    linear = min(cache_bytes(), 4 * _fit_rows(examples, fit, size) * size.heads * (k + 2 * o + 3 * d))
    held = 8 * min(fit, 2 * SIDE_MOST) * values
    own = examples.num * values * examples.dtype.itemsize if drawn else 0
    return int(calibration.PROCESS_BYTES + own + max(cached, refined + linear + held))


def _speed() -> float:
    """Operations a second that the kernel should reach on this machine."""
    return calibration.PLANNED_SPEED * _product_speed() * own_threads() ** 0.75


@cache
def _product_speed() -> float:
    """Operations a second of a matrix product on one core, measured once in a process."""
    a, product = np.ones((512, 512), np.float32), np.empty((512, 512), np.float32)
    seconds = []
    for _ in range(4):  # the first one wakes the library
        began = time.perf_counter()
        np.matmul(a, a, out=product)
        seconds.append(time.perf_counter() - began)
    return 2 * 512**3 / max(min(seconds), np.finfo(float).eps)
