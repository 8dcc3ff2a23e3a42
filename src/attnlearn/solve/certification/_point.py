"""A layer on some examples in white coordinates, ready for products with its Gauss-Newton matrix.

Parameters are (Theta, c, W, b) themselves, or with `rank` the tangent space of matrices of that rank at Theta_i, so no gauge
is left. The coordinates are t = (preconditioned scores, L^T [W; b]), L L^T = P^T P, of `_precondition` and `_regress`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn._types import ArrayLike
from attnlearn.scores import Preconditioner, Scores
from attnlearn.scores._products import product
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._attend import split_linear
from attnlearn.solve._chunks import added, cut
from attnlearn.solve._linearize import (
    Linearization,
    Local,
    forward_derivative,
    linearize,
    reverse_derivative,
)
from attnlearn.solve._precondition import precondition
from attnlearn.solve._regress import Columns, checked_examples, inverse_factor
from attnlearn.solve._unknowns import sequences_wanted
from attnlearn.solve._white import Whitening, whitening


class Point(NamedTuple):
    """A layer on some examples in white coordinates, ready for derivatives."""

    at: Linearization
    by: Preconditioner
    white: Whitening
    gauge: Any | None
    factor: np.ndarray
    rows: int
    examples: int


def prepare(
    layer: AttentionLayer,
    x: ArrayLike,
    mask: ArrayLike | None,
    rank: int | None,
    joint: bool,
    sequences: int | None = None,
    dtype: Any = np.float32,
) -> Point:
    """Linearize a layer on the first examples, by default as many as `refine` starts with, in white coordinates."""
    x = np.asarray(x)
    x, y, keep = checked_examples(x, np.zeros((*x.shape[:2], layer.out_dim), x.dtype), mask, layer.dim)
    white = whitening(x, keep)
    inside = white.enter(layer.parameters)
    rounding = calibration.ROUNDING_EPS * float(np.finfo(layer.dtype).eps)
    scores = white.inside(layer.form.astype(np.float64)).of_rank(rank, rounding)
    tokens, out = x.shape[1] if keep is None else keep.sum() / len(keep), layer.out_dim
    wanted = sequences or int(np.ceil(sequences_wanted(scores, out, tokens, layer.causal)))
    used = min(wanted, len(x))
    keep = None if keep is None else keep[:used]
    double = cut(white.tokens(x[:used].astype(np.float64)), y[:used], keep)
    matrix, _ = Columns(scores.astype(np.float64), double, layer.causal).gram()
    factor = inverse_factor(matrix, calibration.RIDGE)
    linear = np.concatenate([inside.w.reshape(-1, out), inside.output_bias[None]])
    at = linearize(scores, linear, factor, double.astype(dtype), layer.causal)
    by = precondition(at, joint=joint)
    rows = used * x.shape[1] if keep is None else int(keep.sum())
    return Point(at, by, white, at.scores.gauge(by), factor, rows, used)


class Joint(NamedTuple):
    """Coordinates of all parameters: preconditioned scores and L^T [W; b]."""

    scores: Scores
    linear: np.ndarray

    def flat(self) -> np.ndarray:
        """All numbers as one vector."""
        return np.concatenate([self.scores.flat(), self.linear.reshape(-1)])


def free_coordinates(point: Point, t: np.ndarray) -> Joint:
    """The coordinates in a vector, without directions that change no score."""
    size = t.size - point.at.linear.size
    scores, linear = point.at.scores.shaped(t[:size]), t[size:].reshape(point.at.linear.shape)
    return Joint(point.at.scores.without_gauge(scores, point.gauge), linear)


def joint_product(point: Point, t: np.ndarray) -> np.ndarray:
    """The Gauss-Newton matrix of all parameters in preconditioned, gauge-free coordinates."""
    at, by = point.at, point.by
    free = free_coordinates(point, t)
    tangent, linear = by.apply(free.scores), product(at.factor.T, free.linear)

    def part(local: Local, _extra: None) -> tuple[np.ndarray, np.ndarray]:
        u = forward_derivative(tangent, local)
        u += (local.p @ linear).reshape(u.shape)
        return reverse_derivative(u, local).flat(), u.reshape(len(local.p), -1).T @ local.p

    scores, moment = added(at.over_chunks(part))
    back = Joint(by.transpose(at.scores.shaped(scores)), product(moment, at.factor.T).T)
    return free_coordinates(point, back.flat()).flat()


def size_of(point: Point) -> int:
    """Coordinates of all parameters, gauge included."""
    return point.at.scores.flat().size + point.at.linear.size


def original(point: Point, scores: Scores, linear: Any) -> Parameters:
    """A direction of the parameters in white coordinates as one of the layer on the tokens themselves."""
    scores, at = scores.astype(np.float64), point.at.scores.astype(np.float64)
    changed = at.shown(scores)
    w, b = split_linear(np.asarray(linear, np.float64), at.heads)
    return point.white.leave(Parameters(changed.theta, w, changed.query_bias, b))
