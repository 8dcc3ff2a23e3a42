"""Answers of an oracle: what was read of them, the budget that may be spent on them, and what one must look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._errors import AttnlearnError, OracleError, describe
from attnlearn._precision import _import
from attnlearn._types import Outputs, Tokens


class BudgetSpent(AttnlearnError):
    """The next query would exceed the budget of sequences; it was not asked.

    >>> issubclass(BudgetSpent, OracleError)
    False
    """


@dataclass
class Counts:
    """What was read from the oracle: answered sequences, their tokens, and the scalars taken from the answers.

    `cached` sequences were found on disk instead and are not among them; `retried` ones were sent again.

    >>> Counts().sequences
    0
    """

    sequences: int = 0
    tokens: int = 0
    scalars: int = 0
    cached: int = 0
    retried: int = 0


def checked_answer(answer: Any, x: Tokens, out_dim: int | None) -> Outputs:
    """The answer to x as finite numbers (n, k, d_out) in float32 or float64, or an `OracleError` that says what it is."""
    try:
        y = _import(answer, "answer")
    except ValueError as error:
        raise OracleError(f"the oracle answered {describe(answer)}, which is no array") from error
    n, k, _ = x.shape
    if y.ndim != 3 or y.shape[:2] != (n, k) or y.shape[2] < 1 or out_dim not in (None, y.shape[2]):
        expected = f"({n}, {k}, {'d_out' if out_dim is None else out_dim})"
        raise OracleError(f"the oracle answered {x.shape} with shape {y.shape}, not {expected}")
    if y.dtype not in (np.float32, np.float64):
        raise OracleError(f"the oracle answered in {y.dtype}, not float32 or float64")
    if not np.isfinite(y).all():
        raise OracleError("the oracle answered with NaN or infinity")
    return y
