"""What the answers can be trusted to: repeatability and rounding, measured by asking.

A few fixed sequences are asked several times, together and one by one (a batch may be summed in another
order). The spread is the oracle's own noise. The rounding is read off the digits: how many bits of the
mantissa are ever used, and whether all answers are short decimals. Neither sees an error that is the same
every time, such as float32 arithmetic inside: expect a few steps of that besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnlearn._types import Outputs, Tokens
from attnlearn.oracle._calibration import DIGITS_DECADES, DISTINCT_FOR_ROUNDING

_FORMATS = {8: "bfloat16", 11: "float16", 24: "float32", 53: "float64"}


@dataclass(frozen=True)
class Noise:
    """`sigma`: standard deviation of one scalar between repeats; `max_difference`: the largest seen.

    `rounding` names the format of the answers, `step` its absolute size at the answers' own `scale` (root
    mean square).

    >>> noise = Noise(sigma=0.0, max_difference=0.0, scale=1.0, rounding="float32", step=2.0**-23)
    >>> noise.deterministic, noise.level < 1e-7
    (True, True)
    """

    sigma: float
    max_difference: float
    scale: float
    rounding: str
    step: float

    @property
    def deterministic(self) -> bool:
        """Whether every repeat gave the same answer."""
        return self.max_difference == 0.0

    @property
    def level(self) -> float:
        """Standard deviation to expect of one answer: noise, and rounding as a uniform error of one step."""
        return float(np.sqrt(self.sigma**2 + self.step**2 / 12))


def fixed_tokens(num: int, tokens: int, dim: int, dtype: np.dtype) -> Tokens:
    """Sequences that never change: multiples of 1/8 up to 2, which every float format holds exactly.

    >>> fixed_tokens(1, 1, 2, np.dtype(np.float64)).shape
    (1, 1, 2)
    """
    rng = np.random.default_rng(20240131)
    return (rng.integers(-16, 17, size=(num, tokens, dim)) / 8.0).astype(dtype)


def measure(ask: Callable[[Tokens], Outputs], x: Tokens, repeats: int) -> Noise:
    """Ask `x` `repeats` times as one batch and `repeats` times one by one.

    >>> measure(np.sin, fixed_tokens(4, 3, 5, np.dtype(np.float64)), repeats=2).rounding
    'float64'
    """
    answers = [ask(x) for _ in range(repeats)]
    answers += [np.concatenate([ask(x[i : i + 1]) for i in range(len(x))]) for _ in range(repeats)]
    stack = np.stack(answers)
    wide = stack.astype(np.float64)
    scale = float(np.sqrt(np.mean(wide**2)))
    name, relative, absolute = rounding(stack)
    return Noise(
        sigma=float(np.sqrt(np.mean(wide.var(axis=0, ddof=1)))),
        max_difference=float(np.ptp(wide, axis=0).max()),
        scale=scale,
        rounding=name,
        step=max(relative * scale, absolute),
    )


def rounding(answers: np.ndarray) -> tuple[str, float, float]:
    """Name, relative step and absolute step of the format that all `answers` fit.

    >>> rounding(np.round(np.sin(np.arange(1.0, 20.0)), 3))
    ('3 decimals', 0.0, 0.001)
    >>> rounding(np.sin(np.arange(1.0, 20.0)).astype(np.float32).astype(np.float64))[0]
    'float32'
    """
    values = np.unique(np.abs(answers[answers != 0]))
    single = answers.dtype == np.float32
    if len(values) < DISTINCT_FOR_ROUNDING:
        return ("unknown", 2.0**-23, 0.0) if single else ("unknown", 2.0**-52, 0.0)
    short = _decimal(values)
    if short is not None:
        return short
    bits = _mantissa_bits(values.astype(np.float64))
    held = min(width for width in _FORMATS if width >= bits)
    return _FORMATS[held], 2.0 ** (1 - held), 0.0


def _mantissa_bits(values: np.ndarray) -> int:
    mantissas = (np.frexp(values)[0] * 2.0**53).astype(np.int64)
    used = int(np.bitwise_or.reduce(mantissas))
    trailing = (used & -used).bit_length() - 1
    return 53 - trailing


def _decimal(values: np.ndarray) -> tuple[str, float, float] | None:
    # A double that holds float32 numbers shows their decimals only after narrowing.
    if values.dtype == np.float64 and np.array_equal(values.astype(np.float32), values):
        values = values.astype(np.float32)
    # Every float32 is a decimal of 9 digits and every float64 one of 17: stay well below.
    most = 5 if values.dtype == np.float32 else 13
    kind = values.dtype.type
    places = next((p for p in range(most + 1) if np.array_equal(np.round(values, p), values)), None)
    digits = next((g for g in range(1, most + 2) if all(kind(f"{v:.{g - 1}e}") == v for v in values)), None)
    # Short digits of small numbers are many decimals, and the reverse: the coarser reading explains both.
    last = -np.inf if digits is None else float(np.floor(np.log10(values)).mean()) + 1 - digits
    if places is not None and -places >= last - DIGITS_DECADES:
        return f"{places} decimals", 0.0, 10.0**-places
    return None if digits is None else (f"{digits} digits", 10.0 ** (1 - digits), 0.0)
