"""Which sequence lengths the oracle takes. Long sequences say more: a row of k tokens shows k - 1 weights of every head.

Cost: one sequence where the oracle takes all that are wanted, a few more where it does not.
"""

from __future__ import annotations

import numpy as np

from attnlearn.engine import Stop
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._state import ExtractConfig, Inquiry, Problem, State


def wanted_lengths(config: ExtractConfig) -> list[int]:
    """Lengths of the certify sequences, up to the longest that the caller wants.

    >>> wanted_lengths(ExtractConfig()), wanted_lengths(ExtractConfig(certify_tokens=5))
    ([2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [2, 3, 4, 5])
    """
    most = config.certify_tokens
    return sorted({length for length in calibration.CERTIFY_LENGTHS if length < most} | {most})


def accepted_lengths(problem: Problem, state: State, inquiry: Inquiry, fresh: bool) -> list[int]:
    """The lengths to ask: those that are wanted and that the oracle answers, found by bisection.

    An oracle that refuses sequences above some length is learned and certified up to that length.
    """
    lengths = wanted_lengths(problem.config)
    if _answers(lengths[-1], problem, state, inquiry, fresh):
        return lengths
    short = state.scale * np.ones((1, calibration.CERTIFY_TOKENS, problem.dim))
    inquiry.ask(short, keep=False, fresh=fresh)  # ends the run if the oracle is dead
    low, high = lengths.index(calibration.CERTIFY_TOKENS), len(lengths) - 1
    while high - low > 1:
        middle = (low + high) // 2
        taken = _answers(lengths[middle], problem, state, inquiry, fresh)
        low, high = (middle, high) if taken else (low, middle)
    return lengths[: low + 1]


def _answers(length: int, problem: Problem, state: State, inquiry: Inquiry, fresh: bool) -> bool:
    """Whether the oracle takes sequences of that length; an empty budget ends the run."""
    try:
        inquiry.ask(state.scale * np.ones((1, length, problem.dim)), keep=False, fresh=fresh)
    except Stop as stop:
        if stop.outcome_name != "ORACLE_FAILED":
            raise
        return False
    return True
