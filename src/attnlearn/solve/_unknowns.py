"""How many sequences, and how many combinations of the outputs, determine a layer: equations per unknown."""

from __future__ import annotations

import numpy as np

from attnlearn.scores import Scores
from attnlearn.solve import _calibration as calibration


def sequences_wanted(
    scores: Scores,
    out: int,
    tokens: float,
    causal: bool,
    equations: float = calibration.EQUATIONS_PER_UNKNOWN,
    least_rows: int = calibration.LEAST_ROWS,
) -> float:
    """Sequences of so many tokens that determine scores, W and b, with so many equations per unknown.

    The scores, whose equations are counted in the directions that a row can change in, get twice as many.
    """
    width, telling = scores.heads * scores.dim + 1, min(out, scores.directions(tokens, causal))
    rows = max(
        equations * (scores.unknowns() + width * out) / out,
        2 * equations * scores.unknowns() / telling,
        least_rows,
    )
    return rows / tokens


def outputs_wanted(scores: Scores, out: int, tokens: float, causal: bool) -> int:
    """Random combinations of the outputs that tell as much of the scores as all of them; all if half of them would not do.

    The change of a row lies in the span of the differences between its values, m (k - 1) directions; combinations in that
    number see all of it.
    """
    few = max(calibration.PIECE, int(np.ceil(scores.directions(tokens, causal))))
    return few if out >= 2 * few else out


def combinations(out: int, few: int, seed: int) -> np.ndarray:
    """Random orthonormal columns (out, few): outputs times these are no larger, so what they show of a layer all outputs show."""
    return np.linalg.qr(np.random.default_rng([seed, 0x0075]).standard_normal((out, few)))[0]
