"""How far the heads of a layer are apart, how alike and how large they are, and what each contributes that the others cannot.

Distances are taken in float64 after a common scaling, so that no norm overflows: a distance that cannot be computed is NaN,
and NaN passes no check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn._summary import cosines
from attnlearn.scores import Scores, Visible
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._chunks import Chunk, cut, on_threads
from attnlearn.solve._rank import joint_rank
from attnlearn.solve._regress import Columns, inverse_factor
from attnlearn.solve._white import Whitening, whitening

BALANCE = 1 / calibration.DIGIT
COHERENT = calibration.NEARLY_ALL
CANCELLED = calibration.NEGLIGIBLE
RANK_ONE = 1 + calibration.DIGIT
"""Where a condition of the theorem counts as broken (it gives no numbers for finite sizes): norms of two heads that differ by more than
a digit, a cosine of two heads, the smallest singular value of the sum of W over the largest norm of a W, and the effective rank.
Two heads at relative distance t have the cosine 1/sqrt(1 + t^2), 0.9 is t = 0.48. Of 200 random layers of two heads at each of
d = 4, 6, 8, 12 none had a cosine above 0.77; at d = 8 and 12 the least effective ranks were 1.18 and 1.59 (1.02 at d = 4); the
sum was below 1e-3 in one of a hundred."""


def largest_cosine(matrices: Float[np.ndarray, "m d e"]) -> float:
    """The largest |cosine| between two of the matrices; 0 for a single one, and for matrices that are zero.

    >>> largest_cosine(np.stack([np.eye(2), -3 * np.eye(2), np.zeros((2, 2))])).__round__(6)
    1.0
    """
    return float(np.abs(np.tril(cosines(matrices), -1)).max())


def balance(matrices: Float[np.ndarray, "m d e"]) -> float:
    """The largest norm over the smallest; infinite where one matrix is zero and another is not."""
    sizes = np.linalg.norm(matrices.astype(np.float64), axis=(1, 2))
    return ratio(sizes.max(), sizes.min())


def cancellation(w: Float[np.ndarray, "m d o"]) -> float:
    """The smallest singular value of the sum of W, on the rank of all of them, over the largest norm of a W."""
    spectrum = np.linalg.svd(w.sum(axis=0).astype(np.float64), compute_uv=False)
    largest = np.linalg.norm(w.astype(np.float64), ord=2, axis=(1, 2)).max()
    return ratio(spectrum[joint_rank(w) - 1], largest)


def ratio(above: float, below: float) -> float:
    """A quotient that is infinite where something is divided by zero, and zero where zero is."""
    return float(above / below) if below > 0 else 0.0 if above == 0 else np.inf


def shown_scores(
    layer: AttentionLayer, offsets: Sequence[float] = (0,)
) -> tuple[Float[np.ndarray, "m l d d"], Float[np.ndarray, "m l b"]]:
    """What inputs show of every head at each offset: Theta_i(D), and c_i(D) with what a key adds by its offset alone.

    Of the latter what all offsets share is taken out: no softmax shows it.
    """
    form = layer.form.astype(np.float64)
    shown, added = [form.at(offset) for offset in offsets], [form.bias_at(offset) for offset in offsets]
    alone = np.stack([np.concatenate([meets, number[:, None]], axis=1) for meets, number in added], axis=1)
    own = np.stack([one.query_bias for one in shown], axis=1)
    alone = alone - alone.mean(axis=1, keepdims=True)
    return np.stack([one.theta for one in shown], axis=1), np.concatenate([own, alone], axis=2)


class Sizes(NamedTuple):
    """Norms of what inputs show of every head, in the root mean square over the offsets: Theta_i(D), and the biases by offset."""

    theta: Float[np.ndarray, "m"]
    biases: Float[np.ndarray, "m"]


def score_sizes(layer: AttentionLayer, tokens: int) -> Sizes:
    """The sizes at the offsets that queries of so many tokens see.

    >>> score_sizes(AttentionLayer(np.ones((1, 3, 3)), np.ones((1, 3, 3))), 4).theta.tolist()
    [3.0]
    """
    parts = shown_scores(layer, offsets_of(layer, tokens))
    return Sizes(
        *(np.sqrt(np.mean(np.sum(part.reshape(*part.shape[:2], -1) ** 2, axis=2), axis=1)) for part in parts)
    )


def offsets_of(layer: AttentionLayer, tokens: int) -> Sequence[float]:
    """Offsets at which the scores of a layer differ on so many tokens: 0 alone where they do not depend on positions."""
    return (0,) if layer.plain_scores else layer.visible.offsets(tokens)


def head_separation(layer: AttentionLayer, offsets: Sequence[float] = (0,)) -> float:
    """Smallest ‖(Theta, c)_i - (Theta, c)_j‖ over the larger norm of the two, over all `offsets`; 1 for a single head.

    >>> head_separation(AttentionLayer(np.ones((2, 3, 3)), np.ones((2, 3, 3))))
    0.0
    """
    theta, biases = shown_scores(layer, offsets)
    m = layer.num_heads
    return separation(np.concatenate([theta.reshape(m, -1), biases.reshape(m, -1)], axis=1))


def separation(rows: Float[np.ndarray, "m l"]) -> float:
    """The smallest distance of two rows over the larger norm of the two; 1 for a single row.

    >>> round(separation(np.array([[3.0, 0.0], [3.0, 1.5], [0.0, 9.0]])), 6)
    0.447214
    """
    rows = rows / max(float(np.abs(rows).max()), np.finfo(float).tiny)
    sizes = np.maximum(np.linalg.norm(rows, axis=1), np.finfo(float).tiny)
    distances = [
        float(np.linalg.norm(rows[i] - rows[j]) / max(sizes[i], sizes[j]))
        for i in range(len(rows))
        for j in range(i)
    ]
    return float(np.min([1.0, *distances]))  # NaN if one is


def head_visibility(layer: AttentionLayer, held: Batch, scale: float) -> Float[np.ndarray, "m"]:
    """Relative output of each head alone, on a sample of the examples."""
    sample, sizes = held.first(calibration.SAMPLE), []
    for head in range(layer.num_heads):
        own = slice(head, head + 1)
        alone = layer.chosen(own).replace(output_bias=np.zeros_like(layer.output_bias))
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
    inside = white.inside(layer.form.astype(np.float64))
    w, b = white.enter_linear(layer.w, layer.output_bias)
    m, d = inside.heads, inside.dim
    with on_threads():
        matrix = _columns(inside, fitted, white, layer.visible).gram()[0]
        rows = _columns(inside, judged, white, layer.visible)
        linear = np.concatenate([w.reshape(m * d, -1), b[None]])
        effects = []
        for head in range(m):
            kept = np.setdiff1d(np.arange(m * d + 1), np.arange(head * d, (head + 1) * d))
            factor = inverse_factor(matrix[np.ix_(kept, kept)], calibration.RIDGE)
            change = -linear
            for _again in range(2):  # refit the others; the second time removes the bias of the ridge
                change[kept] -= factor.T @ (factor @ (matrix[kept] @ change))
            effects.append(_norms(rows, change))
    return np.stack(effects) / scale


def visibility(effects: Float[np.ndarray, "m n"], fraction: float) -> Float[np.ndarray, "m"]:
    """The effect that each head reaches on at least `fraction` of the sequences.

    >>> visibility(np.array([[0.0, 1.0, 2.0, 3.0]]), 0.5).tolist()
    [2.0]
    """
    number = effects.shape[1]
    place = min(number, max(1, int(np.ceil(fraction * number))))
    return -np.sort(-effects, axis=1)[:, place - 1]


def _columns(inside: Scores, held: Batch, white: Whitening, causal: Visible) -> Columns:
    chunks = cut(white.tokens(held.x.astype(np.float64)), np.zeros((*held.x.shape[:2], 1)), held.mask)
    return Columns(inside, chunks, causal)


def _norms(rows: Columns, linear: np.ndarray) -> np.ndarray:
    """Norm of P `linear` over every sequence."""
    found = np.empty(sum(len(chunk.x) for chunk in rows.chunks))
    for chunk, own in zip(rows.chunks, rows.p.each(_sequence_norms, rows.chunks, given=(linear,))):
        found[chunk.places] = own
    return found


def _sequence_norms(p: np.ndarray, chunk: Chunk, linear: np.ndarray) -> np.ndarray:
    return np.linalg.norm((p @ linear).reshape(len(chunk.x), -1), axis=1)
