"""Regress: given the scores, all W_i and b by least squares, for F is linear in them.

    F = P [W; b],   P = [alpha_1 X, ..., alpha_m X, 1],   [W; b] = (P^T P)^{-1} P^T Y

P is never stored: the (m d + 1)^2 Gram matrix is summed over chunks, its Cholesky factor inverted once, and the
answer corrected with true residuals, which removes the squared condition number of normal equations. Cost per
example k (m d)^2 for the Gram matrix and k m d d_out per correction; memory (m d + 1)^2.

What can fail: heads with equal patterns (or fewer rows than m d + 1) make the Gram matrix singular; the
relative ridge inside the Cholesky factor then picks a solution near the smallest, with the same residual.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from attnlearn._errors import require
from attnlearn._forward import Parameters
from attnlearn._layer import as_mask
from attnlearn._precision import common_dtype, precision, require_finite, to_numpy
from attnlearn._types import ArrayLike, OutputBias, Projection
from attnlearn.solve._calibration import CONTRACTION, CORRECTED, FLOOR_STALL, RIDGE_DOUBLE, RIDGE_SINGLE
from attnlearn.solve._chunks import Chunks, stack_chunks, whitening
from attnlearn.solve._scores import Scores, mixed, patterns, split_linear


def single_blas() -> threadpool_limits:
    """One BLAS thread inside the block: its factors are small, and its threads would fight with XLA's."""
    return threadpool_limits(limits=1, user_api="blas")


@partial(jax.jit, static_argnames="causal")
def gram(scores: Scores, chunks: Chunks, causal: bool) -> tuple[jax.Array, jax.Array]:
    """P^T P (m d + 1, m d + 1) and P^T Y (m d + 1, o)."""

    def add(total, chunk):
        alpha, _, _ = patterns(scores, chunk.x, chunk.keep, causal)
        p = mixed(alpha, chunk.x, chunk.keep)
        return (total[0] + p.T @ p, total[1] + p.T @ chunk.y.reshape(len(p), -1)), None

    size, out, dtype = scores.c.size + 1, chunks.y.shape[-1], chunks.x.dtype
    start = (jnp.zeros((size, size), dtype), jnp.zeros((size, out), dtype))
    return jax.lax.scan(add, start, chunks)[0]


@partial(jax.jit, static_argnames="causal")
def residuals(
    scores: Scores, linear: jax.Array, chunks: Chunks, causal: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """P [W; b] - Y chunk by chunk (C, s k, o), the sum of its squares, and P^T of it."""

    def add(total, chunk):
        alpha, _, _ = patterns(scores, chunk.x, chunk.keep, causal)
        p = mixed(alpha, chunk.x, chunk.keep)
        rest = p @ linear - chunk.y.reshape(len(p), -1)
        return (total[0] + p.T @ rest, total[1] + jnp.sum(rest * rest)), rest

    start = (jnp.zeros_like(linear), jnp.zeros((), linear.dtype))
    (moment, cost), rest = jax.lax.scan(add, start, chunks)
    return rest, cost, moment


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
    scaled = (scaled + scaled.T) / 2
    while True:
        try:
            factor = scipy.linalg.cholesky(scaled + ridge * np.eye(len(scaled)), lower=True)
            break
        except np.linalg.LinAlgError:
            ridge *= 100
            if ridge > 1:
                values, vectors = np.linalg.eigh(scaled)
                scaled, ridge = (vectors * np.maximum(values, 0.0)) @ vectors.T, 1.0
    inverse, _ = scipy.linalg.lapack.dtrtri(factor, lower=1)
    return np.tril(inverse) * scale


class Fit(NamedTuple):
    """W and b eliminated: `linear` = [W; b], `rest` the residuals by chunk, `cost` their squares, `factor` L^-1."""

    linear: np.ndarray
    rest: jax.Array
    cost: float
    factor: np.ndarray


def eliminate(scores: Scores, chunks: Chunks, causal: bool, near: Fit | None = None) -> Fit:
    """The best W and b for these scores; `near`, a fit at nearby scores, spares the Gram matrix."""
    dtype = chunks.x.dtype
    if near is None:
        matrix, moment = (np.asarray(array, np.float64) for array in gram(scores, chunks, causal))
        factor = inverse_factor(matrix, RIDGE_SINGLE if dtype == np.float32 else RIDGE_DOUBLE)
        linear = (factor.T @ (factor @ moment)).astype(dtype)
    else:
        factor, linear = near.factor, near.linear.astype(dtype)
    previous, tolerance = np.inf, CORRECTED[dtype.name]
    while True:
        rest, cost, moment = residuals(scores, linear, chunks, causal)
        # The part of the residual that W and b could still remove, in the norm of the residual itself.
        removable = factor @ np.asarray(moment, np.float64)
        left, size = float(np.linalg.norm(removable)), float(cost) ** 0.5
        if not left > tolerance * size or left > CONTRACTION * previous:
            break
        previous = left
        linear = linear - (factor.T @ removable).astype(dtype)
    rounding = FLOOR_STALL * float(jnp.finfo(dtype).eps) * float(np.linalg.norm(np.asarray(chunks.y)))
    if near is not None and left > max(1e-2 * size, rounding):
        return eliminate(scores, chunks, causal)
    return Fit(linear, rest, float(cost), factor)


def total_squares(y: np.ndarray, mask: np.ndarray | None) -> float:
    """Sum of squares of the real outputs about their mean: what relative residuals are relative to."""
    rows = y.reshape(-1, y.shape[-1]) if mask is None else y[mask]
    return float(np.sum(np.square(rows - rows.mean(axis=0, dtype=np.float64)), dtype=np.float64))


def checked_examples(
    x: ArrayLike, y: ArrayLike, mask: ArrayLike | None, dim: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Examples as NumPy arrays, or the one-line error that names what is wrong with them."""
    x, y = to_numpy(x, "x"), to_numpy(y, "y")
    require(x.ndim == 3 and len(x) >= 1 and x.shape[2] == dim, "x", f"must have shape (n, tokens, {dim})", x)
    require(y.ndim == 3 and y.shape[:2] == x.shape[:2], "y", f"must have shape {x.shape[:2]} + (d_out,)", y)
    common_dtype({"x": x, "y": y})
    require_finite(x, "x")
    require_finite(y, "y")
    return x, y, None if mask is None else as_mask(mask, x)


def regress(
    theta: ArrayLike,
    query_bias: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    causal: bool = False,
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
        theta.ndim == 3 and theta.shape[1] == theta.shape[2], "theta", "must have shape (heads, d, d)", theta
    )
    require(
        query_bias.shape == theta.shape[:2], "query_bias", f"must have shape {theta.shape[:2]}", query_bias
    )
    require(np.isfinite(ridge) and ridge >= 0, "ridge", "must be a finite number >= 0", ridge)
    x, y, keep = checked_examples(x, y, mask, theta.shape[1])
    dtype = common_dtype({"x": x, "theta": theta, "query_bias": query_bias})
    white = whitening(x, keep)
    out = y.shape[-1]
    zero = np.zeros((*theta.shape[:2], out))
    inside = white.enter(Parameters(theta, zero, query_bias, np.zeros(out)))
    with precision(dtype), single_blas():
        scores = Scores(inside.theta, None, inside.query_bias).astype(dtype)
        chunks = Chunks(*map(jnp.asarray, stack_chunks(white.tokens(x), y, keep)))
        if ridge > 0:
            linear, cost = _penalised(scores, chunks, causal, ridge)
        else:
            fit = eliminate(scores, chunks, causal)
            linear, cost = np.asarray(fit.linear, np.float64), fit.cost
    w, b = split_linear(linear, theta.shape[0])
    found = white.leave(Parameters(inside.theta, w, inside.query_bias, b))
    scale = max(total_squares(y, keep), np.finfo(float).tiny)
    return found.w.astype(dtype), found.output_bias.astype(dtype), float(np.sqrt(cost / scale))


def _penalised(scores: Scores, chunks: Chunks, causal: bool, ridge: float) -> tuple[np.ndarray, float]:
    matrix, moment = (np.asarray(array, np.float64) for array in gram(scores, chunks, causal))
    penalty = np.full(len(matrix), ridge * float(chunks.keep.sum()))
    penalty[-1] = 0.0
    factor = inverse_factor(matrix + np.diag(penalty), RIDGE_DOUBLE)
    linear = factor.T @ (factor @ moment)
    _, cost, _ = residuals(scores, jnp.asarray(linear, chunks.x.dtype), chunks, causal)
    return linear, float(cost)
