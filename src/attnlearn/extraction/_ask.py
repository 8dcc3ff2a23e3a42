"""Ask: fresh random sequences of many lengths and sizes, on which the frozen answer is then certified.

An oracle may be an attention layer on short sequences or small tokens only: one with a window, a limit on keys or length, clipped
tokens or capped scores is. So the sequences have 2 to 16 Gaussian tokens, and standard deviations from a third to twice
the scale at which the heads are neither uniform nor saturated. The claims name this range and speak of no other. A few sequences
of larger tokens are asked as well: C2 and C3 are withheld from an oracle that is plainly something else there.
These answers are never taken from a checkpoint or a cache: they are the only evidence that the oracle still is what was learned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnlearn.engine import Stop, Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._polish import padded, score_unknowns, telling
from attnlearn.extraction._state import ExtractConfig, Inquiry, Problem, State, counts


def ask(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The certify queries and their answers, as one padded batch in random order."""
    inquiry, rng = Inquiry(problem, state), tools.rng("certify")
    number = problem.config.certify_sequences or certify_sequences(state)
    lengths = accepted_lengths(problem, state, inquiry)
    xs, ys = [], []
    chosen = rng.choice(lengths, number)
    scales = state.scale * np.exp(rng.uniform(*np.log(calibration.CERTIFY_SCALES), size=number))
    for length in lengths:
        own = scales[chosen == length]
        if len(own):
            tokens = rng.standard_normal((len(own), length, problem.dim)) * own[:, None, None]
            x, y = inquiry.ask(tokens, keep=False, fresh=True)
            xs.append(x)
            ys.append(y)
    order = rng.permutation(number)
    x, y, mask = (array[order] for array in padded(xs, ys))
    found = {"certify_sequences": number, "longest": int(max(lengths)), **counts(problem.oracle)}
    shape = (calibration.LARGER_SEQUENCES, max(lengths), problem.dim)
    beyond = inquiry.ask(
        calibration.LARGER * state.scale * rng.standard_normal(shape), keep=False, fresh=True
    )
    held = {"held_x": x, "held_y": y, "held_mask": mask, "larger_x": beyond[0], "larger_y": beyond[1]}
    return replace(state, **held), found


def accepted_lengths(problem: Problem, state: State, inquiry: Inquiry) -> list[int]:
    """The lengths to ask: those of the plan that the oracle answers, found by bisection.

    An oracle that refuses sequences above some length is certified up to that length.
    """
    lengths = wanted_lengths(problem.config)
    if _answers(lengths[-1], problem, state, inquiry):
        return lengths
    short = state.scale * np.ones((1, calibration.CERTIFY_TOKENS, problem.dim))
    inquiry.ask(short, keep=False, fresh=True)  # ends the run if the oracle is dead
    low, high = lengths.index(calibration.CERTIFY_TOKENS), len(lengths) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _answers(lengths[middle], problem, state, inquiry) else (low, middle)
    return lengths[: low + 1]


def _answers(length: int, problem: Problem, state: State, inquiry: Inquiry) -> bool:
    """Whether the oracle takes sequences of that length; an empty budget ends the run."""
    try:
        inquiry.ask(state.scale * np.ones((1, length, problem.dim)), keep=False, fresh=True)
    except Stop as stop:
        if stop.outcome_name != "ORACLE_FAILED":
            raise
        return False
    return True


def wanted_lengths(config: ExtractConfig) -> list[int]:
    """Lengths of the certify sequences, up to the longest that the caller wants.

    >>> wanted_lengths(ExtractConfig()), wanted_lengths(ExtractConfig(certify_tokens=5))
    ([2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [2, 3, 4, 5])
    """
    most = config.certify_tokens
    return sorted({length for length in calibration.CERTIFY_LENGTHS if length < most} | {most})


def certify_sequences(state: State) -> int:
    """Enough for claim C1, and so many that they and the fitted ones determine the scores, for claim C3."""
    m, d, o = state.w.shape
    rows = calibration.CERTIFY_EQUATIONS * score_unknowns(m, d, state.ranks) / telling(m, o, state.causal)
    rows -= sum(x.shape[0] * x.shape[1] for x in state.asked_x[1:])
    return max(calibration.CERTIFY_SEQUENCES, int(np.ceil(rows / calibration.CERTIFY_TOKENS)))


def certified_range(state: State) -> str:
    """The inputs of which the claims speak, in words."""
    lengths = state.held_mask.sum(axis=1)
    low, high = (state.scale * factor for factor in calibration.CERTIFY_SCALES)
    return f"{lengths.min()} to {lengths.max()} Gaussian tokens of standard deviation {low:.3g} to {high:.3g}"
