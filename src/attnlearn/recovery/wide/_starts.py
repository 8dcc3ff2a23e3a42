"""Starts of the wide search: layers of small random scores, with more heads than the layer probably has.

With as many heads as the layer has, random starts often end in local optima, and below that number they hardly progress. With more the
fit runs straight into the truth. Strong scores of rank one, fitted with full rank, end in sharp heads that memorise the fit
side, so every width is tried with full and with low rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals
from attnlearn.solve._unknowns import score_unknowns


class Width(NamedTuple):
    """A number of heads and the rank that they keep (None: full)."""

    heads: int
    rank: int | None


def widths(problem: Problem, signals: Signals, equations: int) -> list[list[Width]]:
    """The widths to try, narrow ones first; those of one list are tried before a wider list is worth its time.

    Where the equations are too few for a width, as many heads as they can determine, twice.
    """
    least, r = problem.num_heads or 1, signals.directions
    if signals.many:
        return students(problem, r)
    low = max(calibration.WIDE_RANK, r // calibration.WIDE_RANK)
    ranks = (None, low) if low < r else (None,)
    found: list[list[Width]] = []
    for usual in calibration.WIDTHS:
        fitting = [Width(min(_most(problem, r, equations, rank), max(least, usual)), rank) for rank in ranks]
        seen = {width for group in found for width in group}
        group = [width for width in fitting if width.heads >= least and width not in seen]
        found += [group + [width for width in group if width.heads < calibration.WIDTHS[0]]] if group else []
    return found


def students(problem: Problem, directions: int) -> list[list[Width]]:
    """Widths in many directions: of low rank, twice as many heads as are known, or those of most layers and then twice as many.

    The rank is a quarter of the directions, or what is left of them for each head, if the heads are known; then twice that.
    """
    known, rank = problem.num_heads, min(calibration.STUDENT_RANK, -(-directions // calibration.WIDE_RANK))
    if known is not None:
        rank = max(rank, min(2 * calibration.STUDENT_RANK, -(-directions // known)))
    found = []
    for heads, usual in ((calibration.WIDTHS[1], rank), (calibration.WIDTHS[2], 2 * rank)):
        wanted = (
            heads if known is None else max(calibration.WIDTHS[0], known * heads // calibration.WIDTHS[0])
        )
        width = min(wanted, _most(problem, directions, problem.equations, usual, usual))
        found += [[Width(width, usual)]] if width >= max(known or 1, 2) else []
    return found


def _most(problem: Problem, r: int, equations: int, rank: int | None, values: int | None = None) -> int:
    """Heads whose Theta have that rank, and whose W are free or have the rank `values`, which the equations can determine."""
    out = problem.examples.out_dim
    linear = r * out if values is None else values * (r + out - values)
    return int(
        (equations / calibration.EQUATIONS_PER_UNKNOWN - out) // (score_unknowns(r, rank) + r + linear)
    )


def random_heads(signals: Signals, out_dim: int, width: Width, rng: np.random.Generator) -> AttentionLayer:
    """A layer of so many heads with small random scores and no values."""
    (heads, rank), r = width, signals.directions
    if rank is None:
        white = rng.standard_normal((heads, r, r))
    else:
        left, right = rng.standard_normal((2, heads, r, rank)) / np.sqrt(np.sqrt(rank))
        white = left @ np.swapaxes(right, 1, 2)
    zeros = np.zeros((heads, r, out_dim)), np.zeros((heads, r)), np.zeros(out_dim)
    inside = Parameters(white * calibration.WIDE_SCORES / r, *zeros)
    return AttentionLayer(*signals.white.leave(inside), causal=signals.causal)
