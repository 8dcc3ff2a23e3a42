"""The second opinion on scores with positions: can a head's own outputs be given by its negative and a flat head?

By the theorem for scores with positions (docs/positions.md) heads of two layers can stand in for each other only if they are equal, or if one is
the negative of the other and every query sees two keys whose weights change. The latter is tried on the tokens themselves, head by head.
On tokens that look as if they had no density nothing is tried, and nothing is claimed.
Cost: one small regression for each head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.scores import Rotary, build, describe
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._chunks import on_threads
from attnlearn.solve._deadline import passed
from attnlearn.solve._drop import WhitenedRegression
from attnlearn.solve._regress import eliminate
from attnlearn.solve.certification._rivals import Opinion, Rival


def mirrored_opinion(layer: AttentionLayer, held: Batch, deadline: float | None = None) -> Opinion | None:
    """Whether the negative of some head, with a flat one, has its outputs; None if the time was over before the end."""
    layer = layer.astype(np.float64)
    rows = calibration.EQUATIONS_PER_UNKNOWN * (2 * layer.dim + 1)
    some = held.first(max(calibration.SAMPLE, -(-rows // held.x.shape[1])))
    x, tolerance = some.x.astype(np.float64), max(calibration.NO_VARIANCE, rounding_of(held))
    for head in range(layer.num_heads):
        if passed(deadline):
            return None
        alone = layer.chosen([head]).replace(output_bias=np.zeros(layer.out_dim))
        ground = WhitenedRegression(Batch(x, alone(x, some.mask), some.mask), layer.visible)
        with on_threads():
            scores = ground.white.inside(_mirrored(alone.form))
            left = float(np.sqrt(eliminate(scores, ground.chunks, layer.visible).cost / ground.total))
        if left <= tolerance:
            other = layer.replace(form=build(describe(layer.form), _negated(layer.form)))
            return Opinion(
                head + 1, 0, Rival(other, layer.scores_at(0).theta[head], "mirrored", head, 2.0, left)
            )
    return Opinion(layer.num_heads, 0)


def rounding_of(held: Batch) -> float:
    """Relative residual that counts as none in the precision of the tokens."""
    return calibration.ROUNDING_EPS * float(np.finfo(held.x.dtype).eps)


def _negated(form: Any) -> dict[str, np.ndarray]:
    """The arrays of scores of the other sign: one factor of a product, or everything that is linear."""
    arrays = form.arrays()
    changed = ("query",) if isinstance(form, Rotary) else tuple(arrays)
    return {name: -array if name in changed else array for name, array in arrays.items()}


def _mirrored(form: Any) -> Any:
    """The scores of the other sign, and a head without any."""
    both = {name: np.concatenate([array, 0 * array]) for name, array in _negated(form).items()}
    return build(describe(form), both)
