"""How far the linear model of a layer can be trusted: an explicit bound on its second derivative.

Along a direction (dTheta, dc, dW, db) row a of the layer changes to second order by

    sum_i  kappa_3(dl_i, dl_i, x) W_i + 2 Cov(dl_i, x) dW_i,        dl_ib = x_a^T dTheta_i x_b + dc_i . x_b

with covariance and third cumulant over the keys under the head's weights. With D_a the diameter of the keys that row a sees,
g_ai = (‖x_a‖ ‖dTheta_i‖ + ‖dc_i‖) D_a bounds the range of dl_i. A covariance is at most a quarter of the product of two ranges,
and (dl - mean)^2 has a range of at most g^2, so

    ‖second derivative of row a‖ <= sum_i  g_ai^2 D_a / 4 * ‖W_i‖ + g_ai D_a / 2 * ‖dW_i‖

Newton-Kantorovich: let rho bound the difference of two layers' outputs on the examples, sigma be the smallest singular value of
the Jacobian and H bound the second derivative, all in one norm of the parameters. From sigma e <= rho + H e^2 / 2 follows, if
sigma^2 > 2 H rho, that the layers are within e <= 2 rho / (sigma + root) of each other or at least (sigma + root) / H apart,
root = sqrt(sigma^2 - 2 H rho): nothing lies in between.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Ball(NamedTuple):
    """A layer with the same outputs is within `inner` of this one or at least `outer` away, in the norm of the coordinates."""

    inner: float
    outer: float


def second_derivative(
    tokens: np.ndarray,
    keep: np.ndarray | None,
    theta: np.ndarray,
    query_bias: np.ndarray,
    w: np.ndarray,
    w_norms: np.ndarray,
    weight: np.ndarray | None = None,
) -> float:
    """H for coordinates in which a unit step moves head i by at most theta_i, query_bias_i and w_i; `w_norms` are ‖W_i‖.

    It holds as long as no W_i has doubled. `tokens` (n, k, d) are the keys and queries of every sequence; the outputs of a sequence
    are multiplied by its `weight` (n, 1, 1).
    """
    real = np.ones(tokens.shape[:2], bool) if keep is None else keep.astype(bool)
    centre = (tokens * real[..., None]).sum(axis=1) / np.maximum(real.sum(axis=1), 1)[:, None]
    radius = np.where(real, np.linalg.norm(tokens - centre[:, None], axis=2), 0.0).max(axis=1)
    diameter = 2 * radius[:, None]
    sizes = np.where(real, np.linalg.norm(tokens, axis=2), 0.0)
    rows = np.zeros_like(sizes)
    for head in range(len(theta)):
        spread = (sizes * theta[head] + query_bias[head]) * diameter
        rows += spread**2 * diameter / 4 * 2 * w_norms[head] + spread * diameter / 2 * w[head]
    if weight is not None:
        rows *= weight[:, :, 0]
    return float(np.linalg.norm(np.where(real, rows, 0.0)))


def kantorovich(rho: float, sigma: float, curvature: float, most: float = np.inf) -> Ball | None:
    """The ball and the shell around it, or None where the residual is too large for the curvature.

    `most` is the largest step up to which `curvature` holds.

    >>> kantorovich(1e-12, 0.1, 10.0).inner < 1.1e-11
    True
    >>> kantorovich(1.0, 0.1, 10.0) is None
    True
    """
    inside = sigma**2 - 2 * curvature * rho
    if not (inside > 0 and np.isfinite(curvature)):
        return None
    root = float(np.sqrt(inside))
    inner, outer = 2 * rho / (sigma + root), (sigma + root) / max(curvature, np.finfo(float).tiny)
    return Ball(inner, min(outer, most)) if inner < min(outer, most) else None
