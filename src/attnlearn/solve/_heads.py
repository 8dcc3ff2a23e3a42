"""How far the heads of a layer are apart, and what each contributes that the others cannot.

Distances are taken in float64 after a common scaling, so that no norm overflows: a distance that cannot be computed is NaN,
and NaN passes no check.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.scores import Bilinear
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._chunks import cut, on_threads
from attnlearn.solve._regress import Columns, inverse_factor
from attnlearn.solve._white import Whitening, whitening


def head_separation(layer: AttentionLayer) -> float:
    """Smallest ‖(Theta, c)_i - (Theta, c)_j‖ over the larger norm of the two; 1 for a single head.

    >>> head_separation(AttentionLayer(np.ones((2, 3, 3)), np.ones((2, 3, 3))))
    0.0
    """
    stacked = np.concatenate([layer.theta, layer.query_bias[:, None, :]], axis=1).astype(np.float64)
    stacked = stacked / max(float(np.abs(stacked).max()), np.finfo(float).tiny)
    sizes = np.linalg.norm(stacked, axis=(1, 2))
    distances = [1.0]
    for i in range(layer.num_heads):
        for j in range(i):
            larger = max(sizes[i], sizes[j], np.finfo(float).tiny)
            distances.append(float(np.linalg.norm(stacked[i] - stacked[j]) / larger))
    return float(np.min(distances))  # NaN if one is


def head_visibility(layer: AttentionLayer, held: Batch, scale: float) -> Float[np.ndarray, "m"]:
    """Relative output of each head alone, on a sample of the examples."""
    sample, sizes = held.first(calibration.SAMPLE), []
    for head in range(layer.num_heads):
        own = slice(head, head + 1)
        alone = AttentionLayer(layer.theta[own], layer.w[own], layer.query_bias[own], causal=layer.causal)
        outputs = alone(sample.x, sample.mask).astype(np.float64)
        sizes.append(np.sqrt(np.mean(np.sum(outputs**2, axis=(1, 2)))) / scale)
    return np.array(sizes)


def drop_effects(
    layer: AttentionLayer, fitted: Batch, judged: Batch, scale: float
) -> Float[np.ndarray, "m n"]:
    """How much the outputs of every judged sequence change when a head is left out and the others' W are fitted again.

    One row for each head; changes are relative to `scale`. The W and b of the remaining heads are fitted to the layer's own
    outputs on `fitted`, so a head that the others can stand in for has no effect.
    """
    white = whitening(fitted.x, fitted.mask)
    inside = white.enter(layer.astype(np.float64).parameters)
    m, d = inside.query_bias.shape
    with on_threads():
        matrix = _columns(inside, fitted, white, layer.causal).gram()[0]
        rows = _columns(inside, judged, white, layer.causal)
        linear = np.concatenate([inside.w.reshape(m * d, -1), inside.output_bias[None]])
        effects = []
        for head in range(m):
            kept = np.setdiff1d(np.arange(m * d + 1), np.arange(head * d, (head + 1) * d))
            factor = inverse_factor(matrix[np.ix_(kept, kept)], calibration.RIDGE)
            change = -linear
            for _again in range(2):  # refit the others; the second time removes the bias of the ridge
                change[kept] -= factor.T @ (factor @ (matrix[kept] @ change))
            effects.append(_norms(rows, change, judged.x.shape[1]))
    return np.stack(effects) / scale


def visibility(effects: Float[np.ndarray, "m n"], fraction: float) -> Float[np.ndarray, "m"]:
    """The effect that each head reaches on at least `fraction` of the sequences.

    >>> visibility(np.array([[0.0, 1.0, 2.0, 3.0]]), 0.5).tolist()
    [2.0]
    """
    number = effects.shape[1]
    place = min(number, max(1, int(np.ceil(fraction * number))))
    return -np.sort(-effects, axis=1)[:, place - 1]


def _columns(inside: Parameters, held: Batch, white: Whitening, causal: bool) -> Columns:
    chunks = cut(white.tokens(held.x.astype(np.float64)), np.zeros((*held.x.shape[:2], 1)), held.mask)
    return Columns(Bilinear.whole(inside.theta, inside.query_bias), chunks, causal)


def _norms(rows: Columns, linear: np.ndarray, tokens: int) -> np.ndarray:
    """Norm of P `linear` over every sequence."""

    def part(p: np.ndarray, _outputs: np.ndarray) -> np.ndarray:
        return np.linalg.norm((p @ linear).reshape(len(p) // tokens, -1), axis=1)

    return np.concatenate(list(rows.over_chunks(part)))
