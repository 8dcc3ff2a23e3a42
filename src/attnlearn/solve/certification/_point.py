"""A layer on some examples in white coordinates, ready for products with its Gauss-Newton matrices.

Parameters of the scores are (Theta, c) themselves, or with `rank` the tangent space of matrices of that rank at Theta_i, so no
gauge is left. Their coordinates t are those of `_precondition`. Two matrices matter, J the derivative of the outputs in t and
P the columns that W and b multiply (`_regress`):

    S = J^T (I - P P^+) J      what W and b cannot undo
    A = J^T J                  what t does to the outputs

Both may be those of weighted sequences. Where tokens have different sizes a few sequences would carry most of the curvature and the
matrices would be badly conditioned: `even` weights let no sequence move by more in a row than the median one does.
S may be that of a few random combinations of the outputs, which are orthonormal: then it is at most that of all outputs.
A is that of all of them, from the kernels V V^T of the values, which are as many numbers however many outputs there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn._arrays import namespace
from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn._types import ArrayLike
from attnlearn.scores import Preconditioner, Scores
from attnlearn.scores._products import turn
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._attend import split_linear
from attnlearn.solve._chunks import Chunk, Pieces, cut
from attnlearn.solve._linearize import (
    Linearization,
    Local,
    forward_derivative,
    linearize,
    values_of,
    weights_adjoint,
    weights_derivative,
)
from attnlearn.solve._precondition import precondition
from attnlearn.solve._regress import Columns, checked_examples, inverse_factor
from attnlearn.solve._step import projected_product
from attnlearn.solve._unknowns import combinations, outputs_wanted, sequences_wanted
from attnlearn.solve._white import Whitening, whitening


class Point(NamedTuple):
    """A layer on some examples in white coordinates, ready for derivatives; `linear` is [W; b] of all outputs."""

    at: Linearization
    by: Preconditioner
    white: Whitening
    gauge: Any | None
    linear: np.ndarray
    factor: np.ndarray
    rows: int
    examples: int
    tokens: int
    weights: np.ndarray


def prepare(
    layer: AttentionLayer,
    x: ArrayLike,
    mask: ArrayLike | None,
    rank: int | None,
    joint: bool,
    sequences: int | None = None,
    dtype: Any = np.float32,
    rough: bool = False,
    even: bool = False,
) -> Point:
    """Linearize a layer on the first examples, by default as many as `refine` starts with, in white coordinates.

    `rough` takes a few combinations of the outputs where these tell as much and there are examples enough for them. `even` weighs
    the sequences.
    """
    x = np.asarray(x)
    x, _, keep = checked_examples(x, np.zeros((*x.shape[:2], 1), x.dtype), mask, layer.dim)
    white = whitening(x, keep)
    w, b = white.enter_linear(layer.w, layer.output_bias)
    rounding = calibration.ROUNDING_EPS * float(np.finfo(layer.dtype).eps)
    scores = white.inside(layer.form.astype(np.float64)).of_rank(rank, rounding)
    tokens, out = x.shape[1] if keep is None else keep.sum() / len(keep), layer.out_dim
    few = outputs_wanted(scores, out, tokens, layer.visible) if rough else out
    if few < out and sequences_wanted(scores, few, tokens, layer.visible) > len(x):
        few = out
    wanted = sequences or int(np.ceil(sequences_wanted(scores, few, tokens, layer.visible)))
    used = min(wanted, len(x))
    keep = None if keep is None else keep[:used]
    nothing = np.zeros((used, x.shape[1], few))
    double = cut(white.tokens(x[:used].astype(np.float64)), nothing, keep)
    linear = np.concatenate([w.reshape(-1, out), b[None]])
    seen = linear if few == out else linear @ combinations(out, few, 0)
    weights = np.ones(used)
    if even:
        weights = even_weights(
            linearize(scores, seen, np.eye(len(seen)), double.astype(dtype), layer.visible)
        )
        double = double.weighted(weights)
    matrix, _ = Columns(scores.astype(np.float64), double, layer.visible).gram()
    factor = inverse_factor(matrix, calibration.RIDGE)
    at = linearize(scores, seen, factor, double.astype(dtype), layer.visible)
    by = precondition(at, joint=joint)
    rows = used * x.shape[1] if keep is None else int(keep.sum())
    return Point(at, by, white, at.scores.gauge(by), linear, factor, rows, used, x.shape[1], weights)


def even_weights(at: Linearization) -> np.ndarray:
    """The weight of every sequence: at most 1, and such that a row of it moves no more than one of the median sequence."""
    drawn = np.random.default_rng(0xE7E).standard_normal(at.scores.flat().size).astype(at.chunks.dtype)
    tangent = precondition(at, joint=False).apply(at.scores.shaped(drawn))
    moved = np.empty(sum(len(chunk.x) for chunk in at.chunks))
    for chunk, squares in zip(at.chunks, at.local.derive(_squared_moves, given=(tangent,), keep=False)):
        rows = chunk.x.shape[1] if chunk.keep is None else np.maximum(chunk.keep.sum(axis=1), 1)
        moved[chunk.places] = np.sqrt(squares / rows)
    typical = float(np.median(moved))
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.minimum(1.0, typical / moved)
    return np.where(np.isfinite(weights) & (weights > 0), weights, 1.0)


def _squared_moves(local: Local, tangent: Scores) -> np.ndarray:
    """The squared change (n,) of every sequence's outputs along a direction of the scores."""
    moved = forward_derivative(tangent, local)
    return namespace(moved).sum(moved * moved, axis=(1, 2))


def free_coordinates(point: Point, t: np.ndarray) -> np.ndarray:
    """The coordinates without directions that change no score."""
    scores = point.at.scores
    return scores.without_gauge(scores.shaped(t), point.gauge).flat()


def score_product(point: Point, t: np.ndarray, spared: float = 0.0) -> np.ndarray:
    """(S - spared A) t in gauge-free coordinates; with a few combinations of the outputs A too is that of these."""
    free = free_coordinates(point, t)
    return free_coordinates(point, projected_product(point.at, point.by, free, spared)[0])


def kernels(point: Point) -> Pieces:
    """V V^T (n, m k, m k) by chunk, for the values of all outputs."""
    chunks = point.at.chunks
    w = np.asarray(split_linear(point.linear, point.at.scores.heads)[0], chunks.dtype)
    return chunks.derive(_kernel, given=(w,), work=point.at.local.work)


def _kernel(chunk: Chunk, w: np.ndarray) -> np.ndarray:
    values = values_of(chunk.x, w, chunk.weight)
    return values @ turn(values)


def output_product(point: Point, kernel: Pieces, t: np.ndarray) -> np.ndarray:
    """A t in gauge-free coordinates."""
    at, by = point.at, point.by
    tangent = by.apply(at.scores.shaped(free_coordinates(point, t)))
    product = at.local.sum(_through_kernel, kernel, given=(tangent,))
    return free_coordinates(point, by.transpose(product).flat())


def _through_kernel(local: Local, kernel: np.ndarray, tangent: Scores) -> Scores:
    return weights_adjoint(weights_derivative(tangent, local) @ kernel, local)


def size_of(point: Point) -> int:
    """Coordinates of the scores, gauge included."""
    return point.at.scores.flat().size


def original(point: Point, scores: Scores, linear: Any) -> Parameters:
    """A direction of the parameters in white coordinates as one of the layer on the tokens themselves."""
    scores, at = scores.astype(np.float64), point.at.scores.astype(np.float64)
    changed = at.shown(scores)
    w, b = split_linear(np.asarray(linear, np.float64), at.heads)
    return point.white.leave(Parameters(changed.theta, w, changed.query_bias, b))
