"""How many equations queries give for how many unknowns: what the fit and the certificate want to be asked."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._state import State


def score_unknowns(heads: int, dim: int, ranks: list[int] | None) -> int:
    """Free numbers of all Theta_i and c_i.

    >>> score_unknowns(2, 4, [1, 4]), score_unknowns(2, 4, None)
    (31, 40)
    """
    return heads * dim + sum(rank * (2 * dim - rank) for rank in ranks or [dim] * heads)


def informative_outputs(heads: int, out: int, causal: bool, tokens: float) -> float:
    """Numbers in a row of so many tokens that scores can move, on average: all attention weights of a head but one.

    >>> informative_outputs(8, 256, causal=False, tokens=3), informative_outputs(8, 256, causal=True, tokens=3)
    (16, 8.0)
    """
    seen = tokens - 1
    return min(out, heads * (seen / 2 if causal else seen))


def score_equations(heads: int, out: int, causal: bool, lengths: Iterable[int]) -> float:
    """Numbers that scores can move in sequences of these lengths.

    >>> score_equations(8, 256, False, [3, 3, 16])
    2016
    """
    return sum(length * informative_outputs(heads, out, causal, length) for length in lengths)


def tokens_told_apart(heads: int, out: int, value_rank: int, longest: int) -> int:
    """Tokens of a query such that all attention weights of a row can be read from it.

    The values of k - 1 moves must be independent, of all heads together and of each: a W_i of rank one shows one move.

    >>> tokens_told_apart(4, 64, 64, 16), tokens_told_apart(4, 64, 4, 16), tokens_told_apart(1, 8, 1, 16)
    (10, 3, 2)
    """
    moves = max(min(value_rank, 2), int(calibration.TOLD_SHARE * value_rank))
    return 1 + max(1, min(moves, int(calibration.TOLD_SHARE * out / heads), longest - 1))


def missing_sequences(state: State, ranks: list[int] | None) -> int:
    """Random sequences of the longest kind that bring the fit to the wanted number of equations per unknown."""
    m, d, o = state.w.shape
    scores = score_unknowns(m, d, ranks)
    coarse = state.noise > calibration.NOISY * max(float(np.abs(y).max(initial=0.0)) for y in state.asked_y)
    factor = calibration.FIT_EQUATIONS_NOISY if coarse else calibration.FIT_EQUATIONS
    asked = [x.shape[1] for x in state.asked_x[1:] for _ in range(len(x))]
    rows = factor * (scores + m * d * o + o) / o - sum(asked)
    equations = calibration.FIT_SCORE_EQUATIONS * scores - score_equations(m, o, state.causal, asked)
    rows = max(rows, equations / informative_outputs(m, o, state.causal, state.longest))
    return max(calibration.FIT_RANDOM_LEAST, int(np.ceil(rows / state.longest)))


def certify_sequences(state: State, lengths: list[int]) -> int:
    """Enough for claim C1, and so many that they and the fitted ones determine the scores, for claim C3."""
    m, d, o = state.w.shape
    asked = [x.shape[1] for x in state.asked_x[1:] for _ in range(len(x))]
    wanted = calibration.CERTIFY_EQUATIONS * score_unknowns(m, d, state.ranks)
    missing = wanted - score_equations(m, o, state.causal, asked)
    each = score_equations(m, o, state.causal, lengths) / len(lengths)
    return max(calibration.CERTIFY_SEQUENCES, int(np.ceil(missing / each)))


def determined(heads: int, dim: int, out: int, causal: bool, lengths: list[int]) -> bool:
    """Whether sequences of these lengths determine whole Theta_i: then a Theta of zero need not be taken for granted."""
    scores = score_unknowns(heads, dim, None)
    seen = [length for length in lengths if length > 1]
    enough = score_equations(heads, out, causal, seen) >= calibration.CERTIFY_EQUATIONS * scores
    return enough and sum(seen) * out >= calibration.CERTIFY_EQUATIONS * (scores + heads * dim * out + out)
