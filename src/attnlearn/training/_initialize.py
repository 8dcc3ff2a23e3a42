"""Starting points: zero, Gaussian, and one gradient step from zero with random head signs (the first step).

    first-step:  W_h = 0,  U_h = alpha_h (eta_0 / sqrt H) (1/(2n)) sum_i y_i 1 mean(X_i)^T,   alpha_h = ±1

which is alpha_h times the head's share of one step eta_0 = init_scale sqrt(H) from zero, where attention is
uniform. Cost: one pass over the tokens. Each start reports B2 = max_h ‖theta_h‖ and B_Phi = max_i |Phi_i|;
the margin gamma is computed by `_tangent.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._errors import require
from attnlearn.training._model import Model, Weights

INITIALIZATIONS = ("zero", "gaussian", "first-step")


def initialize(
    model: Model,
    init: str,
    x: Float[np.ndarray, "n k d"],
    y: Float[np.ndarray, "n"],
    num_heads: int,
    rng: np.random.Generator,
    scale: float = 1.0,
) -> Weights:
    """The start of a run as NumPy arrays in the dtype of the tokens.

    >>> from attnlearn.training._model import AttentionModel
    >>> x, y = np.ones((4, 3, 2)), np.ones(4)
    >>> start = initialize(AttentionModel(), "first-step", x, y, 2, np.random.default_rng(0))
    >>> np.abs(start.u).max(), np.abs(start.w).max()
    (np.float64(0.5), np.float64(0.0))
    """
    require(init in INITIALIZATIONS, "init", f"must be one of {', '.join(INITIALIZATIONS)}", init)
    _, tokens, dim = x.shape
    rows = model.positions(tokens)
    u, w = (num_heads, rows, dim), (num_heads, dim, dim)
    if init == "gaussian":
        first = scale * rng.standard_normal(u) / np.sqrt(rows * dim)
        return Weights(first.astype(x.dtype), (scale * rng.standard_normal(w) / dim).astype(x.dtype))
    if init == "zero":
        return Weights(np.zeros(u, x.dtype), np.zeros(w, x.dtype))
    mean = np.einsum("n,nd->d", y, x.mean(axis=1, dtype=np.float64)) / (2 * len(x))
    signs = 1.0 - 2.0 * rng.integers(0, 2, size=num_heads)
    first = scale * signs[:, None, None] * np.broadcast_to(mean, u)
    return Weights(first.astype(x.dtype), np.zeros(w, x.dtype))


def first_step_size(scale: float, num_heads: int) -> float:
    """eta_0 of the first-step start: `scale` sqrt(H), so that every head starts at `scale` times the mean.

    >>> first_step_size(1.0, 16)
    4.0
    """
    return scale * num_heads**0.5


def largest_head(weights: Weights) -> float:
    """B2 = max_h ‖(U_h, W_h)‖.

    >>> largest_head(Weights(np.ones((2, 1, 2)), np.zeros((2, 2, 2)))) == 2**0.5
    True
    """
    u, w = ((np.asarray(part, np.float64) ** 2).sum(axis=(1, 2)) for part in weights)
    return float(np.sqrt((u + w).max()))


def read_out_norm(weights: Any) -> float:
    """max_h ‖U_h‖.

    >>> read_out_norm(Weights(np.ones((2, 1, 4)), None))
    2.0
    """
    return float(np.sqrt((np.asarray(weights.u, np.float64) ** 2).sum(axis=(1, 2)).max()))
