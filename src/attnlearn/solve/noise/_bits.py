"""The precision that numbers have, whatever their dtype says: how many bits of the significand are in use.

A float64 array may hold what was computed or stored in float32, bfloat16 or float16. Then the last bits of every number are zero.

Cost: one pass over some of the numbers. What can fail: a model that computes in float32 and adds in float64 leaves no zero bits; there the
plateau of the residual tells (`recovery._fit`).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnlearn.solve._calibration import SCAN_COORDINATES

SINGLE, HALF = 24, 11
"""Bits of the significand of float32 and of float16; bfloat16 has 8."""


def bits_in_use(values: Float[np.ndarray, "*shape"]) -> int:
    """Bits of the significand that some of the numbers need, the leading one included; 0 where all are zero.

    >>> numbers = np.random.default_rng(0).standard_normal(100)
    >>> [bits_in_use(array) for array in (numbers, numbers.astype(np.float32), numbers.astype(np.float32).astype(np.float64))]
    [53, 24, 24]
    >>> bits_in_use(np.array([1.0, -2.0])), bits_in_use(np.zeros(3))
    (1, 0)
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    flat = flat[:: max(1, flat.size // SCAN_COORDINATES)]
    flat = flat[flat != 0]
    if not flat.size:
        return 0
    single = flat.dtype == np.float32
    width = 23 if single else 52
    kind = np.uint32 if single else np.uint64
    used = int(np.bitwise_or.reduce(flat.view(kind)) & kind((1 << width) - 1))
    zeros = width if used == 0 else (used & -used).bit_length() - 1
    return 1 + width - zeros


def in_half_precision(values: Float[np.ndarray, "*shape"]) -> bool:
    """Whether numbers have no more bits than half precision has: as outputs they carry errors that every example averages out.

    >>> in_half_precision(np.float16([0.1, 0.3]).astype(float)), in_half_precision(np.array([0.1, 0.3]))
    (True, False)
    """
    return 0 < bits_in_use(values) <= HALF + 1


def precision_of(values: Float[np.ndarray, "*shape"]) -> np.dtype:
    """The precision that outputs have: float32 where they need no more bits than that, though more than half precision has.

    >>> numbers = np.random.default_rng(0).standard_normal(100)
    >>> precision_of(numbers.astype(np.float32).astype(np.float64)), precision_of(numbers), precision_of(np.ones(3))
    (dtype('float32'), dtype('float64'), dtype('float64'))
    """
    rounded = HALF + 1 < bits_in_use(values) <= SINGLE
    return np.dtype(np.float32) if rounded else values.dtype
