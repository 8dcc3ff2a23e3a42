"""How many sequences determine a layer: equations per unknown."""

from __future__ import annotations

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
