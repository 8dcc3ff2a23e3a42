"""The closed-form loss and gradient as a plain function of arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._jax import jax
from attnlearn._precision import precision, promoted, require_finite, to_numpy
from attnlearn._types import ArrayLike
from attnlearn.training._loss import Chunks, cut, evaluate
from attnlearn.training._model import AttentionModel, Model, Weights, equal_scales
from attnlearn.training._problem import check_examples


@partial(jax.jit, static_argnames=("model",))
def _evaluate(model: Model, weights: Weights, scales: Any, chunks: Chunks) -> Any:
    result = evaluate(model, weights, scales, chunks)
    return result.loss, result.gradient


def loss_and_gradient(
    u: ArrayLike, w: ArrayLike, x: ArrayLike, y: ArrayLike, *, model: Model | None = None
) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """Mean logistic loss and its gradient in closed form, in chunks.

    `u` (H, tokens, d), `w` (H, d, d), `x` (n, tokens, d), labels ±1. Cost: 4 n (T-1) H d^2 + 8 n H T (T-1) d
    operations; memory of one chunk.

    >>> loss, (gradient_u, gradient_w) = loss_and_gradient(
    ...     np.zeros((1, 2, 3)), np.zeros((1, 3, 3)), np.ones((4, 2, 3)), np.ones(4))
    >>> round(loss, 4), float(gradient_u[0, 0, 0])
    (0.6931, -0.5)
    """
    model = AttentionModel() if model is None else model
    u, w = to_numpy(u, "u"), to_numpy(w, "w")
    x, y = check_examples(x, y)
    x, y, u, w = promoted(x, y, u, w)
    dtype = x.dtype
    rows, dim = model.positions(x.shape[1]), x.shape[2]
    require(
        u.ndim == 3 and u.shape[0] >= 1 and u.shape[1:] == (rows, dim),
        "u",
        f"must have shape (H, {rows}, {dim})",
        u,
    )
    require(w.shape == (u.shape[0], dim, dim), "w", f"must have shape ({u.shape[0]}, {dim}, {dim})", w)
    require_finite(u, "u")
    require_finite(w, "w")
    with precision(dtype):
        scales = equal_scales(len(u), dtype)
        loss, gradient = _evaluate(model, Weights(u, w), scales, cut(x, y, len(u)))
        return float(loss), (np.asarray(gradient.u), np.asarray(gradient.w))
