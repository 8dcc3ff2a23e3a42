"""Regress: given the scores, all W_i and b by least squares, for F is linear in them.

    F = P [W; b],   P = [alpha_1 X, ..., alpha_m X, 1],   [W; b] = (P^T P)^{-1} P^T Y

P is never stored: the (m d + 1)^2 Gram matrix is summed over chunks, its Cholesky factor inverted once, and the
answer corrected with true residuals, which removes the squared condition number of normal equations. Cost per
example k (m d)^2 for the Gram matrix and k m d d_out per correction; memory (m d + 1)^2.

What can fail: heads with equal patterns (or fewer rows than m d + 1) make the Gram matrix singular; the
relative ridge inside the Cholesky factor then picks a solution near the smallest, with the same residual.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

from attnlearn._arrays import reshape
from attnlearn._attention import Parameters
from attnlearn._errors import require
from attnlearn._precision import as_mask, promoted, require_finite, to_numpy
from attnlearn._types import ArrayLike, OutputBias, Projection
from attnlearn.scores import Bilinear, Scores, Visible
from attnlearn.scores._products import turn
from attnlearn.solve._attend import mixed, patterns, split_linear
from attnlearn.solve._calibration import (
    ENOUGH_SHARE,
    FLOOR_STALL,
    HALVED,
    NEGLIGIBLE,
    RIDGE,
    ROUGH,
    STANDS_OUT,
    in_precision,
)
from attnlearn.solve._chunks import Chunk, Chunks, Pieces, cache_bytes, cut, on_threads
from attnlearn.solve._white import whitening


def columns(chunk: Chunk, scores: Scores, causal: bool | Visible) -> np.ndarray:
    """P of one chunk (s k, m d + 1)."""
    alpha, _ = patterns(scores, chunk.x, turn(chunk.x), chunk.keep, causal)
    return mixed(alpha, chunk.x, chunk.keep, chunk.weight)


class Columns:
    """P by chunk, for several passes: kept if it is small, and otherwise recomputed in each."""

    def __init__(self, scores: Scores, chunks: Chunks, causal: bool | Visible) -> None:
        width = scores.heads * scores.dim + 1
        fits = chunks.dtype.itemsize * chunks.rows * width <= ENOUGH_SHARE * cache_bytes()
        work = chunks.multiplications(width)
        self.chunks = chunks
        self.p = chunks.derive(columns, given=(scores, causal), keep=fits, work=work)

    def gram(self) -> tuple[np.ndarray, np.ndarray]:
        """P^T P (m d + 1, m d + 1) and P^T Y (m d + 1, o)."""
        return self.p.sum(_gram, self.chunks)

    def residuals(self, linear: np.ndarray) -> tuple[Pieces, float, np.ndarray]:
        """P [W; b] - Y chunk by chunk (s k, o), the sum of its squares, and P^T of it."""
        rest = self.p.derive(_rest, self.chunks, given=(linear,))
        return rest, *rest.sum(_squares, self.p)


def _gram(p: np.ndarray, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    return p.T @ p, p.T @ reshape(chunk.y, (p.shape[0], -1))


def _rest(p: np.ndarray, chunk: Chunk, linear: np.ndarray) -> np.ndarray:
    rest = p @ linear
    rest -= reshape(chunk.y, rest.shape)
    return rest


def _squares(rest: np.ndarray, p: np.ndarray) -> tuple[float, np.ndarray]:
    flat = reshape(rest, (-1,))
    return float(flat @ flat), p.T @ rest


def inverse_factor(matrix: Float[np.ndarray, "s s"], ridge: float) -> Float[np.ndarray, "s s"]:
    """Lower triangular L^-1 in float64 with matrix = L L^T, scaled to unit diagonal before the ridge.

    Saturated attention leaves a matrix that is zero up to rounding, which may be negative: only its positive part counts.
    A matrix that is not finite (scores overflowed at a trial point) gives NaN, and with it a trial that is rejected.

    >>> bool(np.isfinite(inverse_factor(-1e-8 * np.eye(2), 1e-6)).all())
    True
    """
    matrix = np.asarray(matrix, np.float64)
    if not np.isfinite(matrix).all():
        return np.full_like(matrix, np.nan)
    if not matrix.any():  # factors of a Theta that is zero
        return np.eye(len(matrix))
    diagonal = np.diag(matrix)
    # Of a positive matrix the largest entry is on the diagonal.
    scale = 1 / np.sqrt(np.maximum(diagonal, max(np.abs(matrix).max(), np.finfo(float).tiny) * ridge**2))
    scaled = matrix * scale * scale[:, None]
    unit, ridge = np.diag(scaled).copy(), float(ridge)
    while True:
        np.fill_diagonal(scaled, unit + ridge)
        try:
            factor = scipy.linalg.cholesky(
                scaled, lower=True, check_finite=False
            )  # reads the lower half only
            break
        except np.linalg.LinAlgError:
            ridge *= STANDS_OUT
            if ridge > 1:
                np.fill_diagonal(scaled, unit)
                values, vectors = np.linalg.eigh(scaled)
                scaled, ridge = (vectors * np.maximum(values, 0.0)) @ vectors.T, 1.0
                unit = np.diag(scaled).copy()
    inverse, _ = scipy.linalg.lapack.dtrtri(factor, lower=1)  # pyright: ignore[reportAttributeAccessIssue]
    inverse *= scale
    return inverse


class Fit(NamedTuple):
    """W and b eliminated: `linear` = [W; b], `rest` the residuals by chunk, `cost` their squares, `factor` L^-1."""

    linear: np.ndarray
    rest: Pieces
    cost: float
    factor: np.ndarray


def eliminate(scores: Scores, chunks: Chunks, causal: bool | Visible, near: Fit | None = None) -> Fit:
    """The best W and b for these scores; `near` is a fit at nearby scores, whose Gram matrix is used again."""
    dtype, of = chunks.dtype, Columns(scores, chunks, causal)
    if near is None:
        matrix, moment = (np.asarray(array, np.float64) for array in of.gram())
        factor = inverse_factor(matrix, in_precision(RIDGE, dtype))
        linear = (factor.T @ (factor @ moment)).astype(dtype)
    else:
        factor, linear = near.factor, near.linear.astype(dtype)
    previous, tolerance = np.inf, in_precision(NEGLIGIBLE**2, dtype)
    while True:
        rest, cost, moment = of.residuals(linear)
        # The part of the residual that W and b could still remove, in the norm of the residual itself.
        removable = factor @ np.asarray(moment, np.float64)
        left, size = float(np.linalg.norm(removable)), cost**0.5
        if not left > tolerance * size or left > HALVED * previous:
            break
        previous = left
        linear = linear - (factor.T @ removable).astype(dtype)
    size_of_y = np.sqrt(sum(float(np.vdot(chunk.y, chunk.y)) for chunk in chunks))
    rounding = FLOOR_STALL * float(np.finfo(dtype).eps) * size_of_y
    if near is not None and left > max(ROUGH * size, rounding):
        return eliminate(scores, chunks, causal)
    of.p.drop()
    return Fit(linear, rest, cost, factor)


def total_squares(y: np.ndarray, mask: np.ndarray | None) -> float:
    """Sum of squares of the real outputs about their mean: what relative residuals are relative to."""
    rows = y.reshape(-1, y.shape[-1]) if mask is None else y[mask]
    return float(np.sum(np.square(rows - rows.mean(axis=0, dtype=np.float64)), dtype=np.float64))


def checked_examples(
    x: ArrayLike, y: ArrayLike, mask: ArrayLike | None, dim: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Examples as NumPy arrays, or the one-line error that names what is wrong with them."""
    x, y = to_numpy(x, "x"), to_numpy(y, "y")
    require(x.shape[2:] == (dim,) and len(x) >= 1, "x", f"must have shape (n, tokens, {dim})", x)
    require(
        y.shape[:2] == x.shape[:2] and len(y.shape[2:]) == 1,
        "y",
        f"must have shape {x.shape[:2]} + (d_out,)",
        y,
    )
    require_finite(x, "x")
    require_finite(y, "y")
    x, y = promoted(x, y)
    return x, y, None if mask is None else as_mask(mask, x)


def regress(
    theta: ArrayLike,
    query_bias: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    causal: bool | Visible = False,
    ridge: float = 0.0,
) -> tuple[Projection, OutputBias, float]:
    """W (m, d, d_out), b (d_out,) and the relative residual of the best fit with these scores.

    The residual is relative to the spread of y about its mean. `ridge` adds ridge * rows * ‖W‖^2 in white
    coordinates of the tokens.

    >>> from attnlearn import AttentionLayer
    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((50, 5, 4))
    >>> w, b, residual = regress(layer.theta, layer.query_bias, x, layer(x))
    >>> bool(np.abs(w - layer.w).max() < 1e-10 and residual < 1e-12)
    True
    """
    theta, query_bias = to_numpy(theta, "theta"), to_numpy(query_bias, "query_bias")
    require(
        theta.ndim > 1 and theta.shape[1:] == 2 * theta.shape[2:],
        "theta",
        "must have shape (heads, d, d)",
        theta,
    )
    require(
        query_bias.shape == theta.shape[:2], "query_bias", f"must have shape {theta.shape[:2]}", query_bias
    )
    require(np.isfinite(ridge) and ridge >= 0, "ridge", "must be a finite number >= 0", ridge)
    x, y, keep = checked_examples(x, y, mask, theta.shape[1])
    x, y, theta, query_bias = promoted(x, y, theta, query_bias)
    dtype = x.dtype
    white = whitening(x, keep)
    out = y.shape[-1]
    zero = np.zeros((*theta.shape[:2], out))
    inside = white.enter(Parameters(theta, zero, query_bias, np.zeros(out)))
    with on_threads():
        scores = Bilinear.whole(inside.theta, inside.query_bias).astype(dtype)
        chunks = cut(white.tokens(x), y, keep)
        if ridge > 0:
            linear, cost = _penalised(scores, chunks, causal, ridge)
        else:
            fit = eliminate(scores, chunks, causal)
            linear, cost = np.asarray(fit.linear, np.float64), fit.cost
    w, b = split_linear(linear, theta.shape[0])
    found = white.leave(Parameters(inside.theta, w, inside.query_bias, b))
    scale = max(total_squares(y, keep), np.finfo(float).tiny)
    return found.w.astype(dtype), found.output_bias.astype(dtype), float(np.sqrt(cost / scale))


def _penalised(
    scores: Scores, chunks: Chunks, causal: bool | Visible, ridge: float
) -> tuple[np.ndarray, float]:
    of = Columns(scores, chunks, causal)
    matrix, moment = (np.asarray(array, np.float64) for array in of.gram())
    penalty = np.full(len(matrix), ridge * chunks.real)
    penalty[-1] = 0.0
    factor = inverse_factor(matrix + np.diag(penalty), RIDGE)
    linear = factor.T @ (factor @ moment)
    _, cost, _ = of.residuals(linear.astype(chunks.dtype))
    return linear, cost
