"""What a run will take, said before it starts: examples, memory, time.

Memory is that of the whole process beside the caller's own arrays: the interpreter with its libraries, whitened rows
that the moment keeps (never more than a fixed size, above it they are recomputed in every pass), and the examples that
refine and certify hold, whose number depends on the layer and not on the data. Time counts the products of the moment
and of refine, at the speed of one matrix product measured here. Both are estimates for heads of full rank, because the
number of heads, their rank, the passes and the steps are not known yet: memory was planned at 1.12 and 2.50 GB where
0.39 (d = 64, on disk) and 0.95 (d = 128, drawn; rank 16) were measured, time at 14 and 106 s where 7 and 31 were.
Noise in the outputs makes refine use more examples, which is not planned for.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn.data import Examples
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery.spectral import _calibration as spectral
from attnlearn.solve._calibration import CERTIFY_MOST, SELECT_MOST
from attnlearn.solve._chunks import cache_bytes

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

    >>> Plan(20_000, 1_000_000_000, 30.0, 12, None).fits(500_000_000)
    False
    """

    examples: int
    memory_bytes: int
    seconds: float
    heads_supported: int
    memory_limit: int | None

    def fits(self, limit: int | None) -> bool:
        """Whether the expected memory is within the limit."""
        return limit is None or self.memory_bytes <= limit

    def figures(self) -> dict[str, Any]:
        """For a line of progress."""
        return {
            "examples": self.examples,
            "heads_supported": self.heads_supported,
            "memory": f"{self.memory_bytes / 1e9:.2f}GB",
            "time": f"about_{max(1, round(self.seconds))}s",
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return asdict(self)


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
    size = int(float(match[1]) * _UNITS.get(match[2], 0))
    require(size >= 1, "memory", rule, memory)
    return size


def make_plan(
    examples: Examples, fit: int, num_heads: int | None, drawn: bool, memory: int | float | str | None
) -> Plan:
    """The plan of a run on these examples, or the one-line refusal when it does not fit into `memory`."""
    limit = parse_memory(memory)
    heads = num_heads or spectral.GUESSED_HEADS
    k, d, o = examples.tokens, examples.dim, examples.out_dim
    per_head = d * d + d + d * o
    rows = k * o
    supported = int(fit * rows / (calibration.EQUATIONS_NEEDED * per_head))
    plan = Plan(
        examples.num,
        _memory(examples, fit, heads, drawn),
        _flops(examples, fit, heads) / _speed(),
        supported,
        limit,
    )
    remedy = (
        f"must be at least {plan.memory_bytes / 1e9:.2f} GB for this run (give fewer examples or tokens a sequence, "
        "or num_heads if you know it)"
    )
    require(plan.fits(limit), "memory", remedy, memory)
    return plan


def refine_sequences(examples: Examples, fit: int, heads: int) -> int:
    """Sequences of which refine holds copies, when their outputs carry no noise."""
    d, o = examples.dim, examples.out_dim
    wanted = calibration.REFINE_EQUATIONS * heads * (d * d + d + d * o) / (examples.tokens * o)
    return min(fit, max(calibration.REFINE_FEWEST, int(wanted)))


def _memory(examples: Examples, fit: int, heads: int, drawn: bool) -> int:
    k, d, o = examples.tokens, examples.dim, examples.out_dim
    values = k * (d + o)
    cached = min(4 * fit * values, spectral.CACHE_BYTES)
    refined = calibration.REFINE_COPIES * 8 * refine_sequences(examples, fit, heads) * values
    linear = min(cache_bytes(), 4 * _refine_rows(examples, fit, heads) * heads * (k + d + 2 * o + 2 * d))
    held = 8 * min(fit, CERTIFY_MOST + SELECT_MOST) * values
    own = examples.num * values * examples.dtype.itemsize if drawn else 0
    return int(calibration.PROCESS_BYTES + own + max(cached, refined + linear + held))


def _refine_rows(examples: Examples, fit: int, heads: int) -> float:
    unknowns = heads * (examples.dim**2 + examples.dim + examples.dim * examples.out_dim)
    return min(fit * examples.tokens, 8 * unknowns / examples.out_dim)


def _flops(examples: Examples, fit: int, heads: int) -> float:
    k, d, o = examples.tokens, examples.dim, examples.out_dim
    rows = fit * k
    one = 4 * (d * o + 2 * k * d + d * d)  # one vector, one row, both products of a pass
    # The weakest of m equal heads stands (1/2) sqrt((k - 1) N / (m d)) floors high on N sequences.
    looked = k * calibration.PLANNED_LOOK * (2 * spectral.CLEAR) ** 2 * heads * d / max(1, k - 1)
    moment = calibration.PLANNED_PASSES * min(rows, looked) * one * (heads + 2 * spectral.SPARE)
    inner = 4 * heads * d * (o + d)  # one row of one product with the Gauss-Newton matrix
    return moment + 4 * rows * d * d + calibration.PLANNED_INNER * _refine_rows(examples, fit, heads) * inner


def _speed() -> float:
    """Operations a second of a float32 matrix product on this machine, now."""
    a, product = np.ones((512, 512), np.float32), np.empty((512, 512), np.float32)
    seconds = []
    for _ in range(4):  # the first one wakes the library
        began = time.perf_counter()
        np.matmul(a, a, out=product)
        seconds.append(time.perf_counter() - began)
    return calibration.PLANNED_EFFICIENCY * 2 * 512**3 / max(min(seconds), 1e-6)
