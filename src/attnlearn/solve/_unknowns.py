"""How many numbers a layer has that are free, and how many sequences and combinations of outputs determine them.

Both count equations per unknown.
"""

from __future__ import annotations

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.scores import Scores, Visible, value_directions
from attnlearn.solve import _calibration as calibration


def score_unknowns(dim: int, rank: int | None) -> int:
    """Free numbers of one Theta of this rank (None: full), gauge removed.

    >>> score_unknowns(4, None), score_unknowns(4, 1)
    (16, 7)
    """
    return dim * dim if rank is None or rank >= dim else rank * (2 * dim - rank)


def unknowns(heads: int, dim: int, out_dim: int, rank: int | None = None) -> int:
    """Free parameters of a layer whose heads have the given rank (None: full), gauge removed.

    >>> unknowns(1, 4, 3), unknowns(1, 4, 3, rank=1)
    (35, 20)
    """
    r = min(dim if rank is None else rank, dim, out_dim)
    values = r * (dim + out_dim - r)
    return heads * (score_unknowns(dim, rank) + dim + values) + out_dim


def layer_unknowns(layer: AttentionLayer, rank: int | None) -> int:
    """Free parameters of a layer like this one."""
    if not layer.plain_scores:
        return layer.form.unknowns() + layer.w.size + layer.output_bias.size
    return unknowns(layer.num_heads, layer.dim, layer.out_dim, rank)


def sequences_wanted(
    scores: Scores,
    out: int,
    tokens: float,
    causal: bool | Visible,
    equations: float = calibration.EQUATIONS_PER_UNKNOWN,
    least_rows: int = calibration.LEAST_ROWS,
) -> float:
    """Sequences of so many tokens that determine scores, W and b, with so many equations per unknown.

    The scores, whose equations are counted in the directions that a row can change in, get twice as many.
    """
    width, telling = scores.heads * scores.dim + 1, min(out, value_directions(scores.heads, tokens, causal))
    rows = max(
        equations * (scores.unknowns() + width * out) / out,
        2 * equations * scores.unknowns() / telling,
        least_rows,
    )
    return rows / tokens


def outputs_wanted(scores: Scores, out: int, tokens: float, causal: bool | Visible) -> int:
    """Random combinations of the outputs that tell as much of the scores as all of them; all if half of them would not do.

    The change of a row lies in the span of the differences between its values, m (k - 1) directions; combinations in that
    number see all of it.
    """
    few = max(calibration.PIECE, int(np.ceil(value_directions(scores.heads, tokens, causal))))
    return few if out >= 2 * few else out


def combinations(out: int, few: int, seed: int) -> np.ndarray:
    """Random orthonormal columns (out, few): outputs times these are no larger, so what they show of a layer all outputs show."""
    return np.linalg.qr(np.random.default_rng([seed, 0x0075]).standard_normal((out, few)))[0]
