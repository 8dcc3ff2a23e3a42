"""Gauss-Newton with the whole Jacobian, for layers small enough to hold it: the last digits without compilation.

Unknowns are Theta, c, W and b themselves. With x̄ the attended token of a row and C_i = sum_b alpha_ib (x_b - x̄_i)
(x_b W_i)^T, the derivative of row a is x_a[u] C_i[p, o] in Theta_i[u, p], C_i[p, o] in c_i[p], x̄_i[p] in W_i[p, o].
QR keeps the accuracy that normal equations would lose.

Cost: O(equations unknowns^2) per step. What can fail: a start outside the basin; no step is taken that does not
decrease the residual.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn._types import Outputs, Tokens
from attnlearn.extraction import _calibration as calibration


def unknowns(layer: AttentionLayer) -> int:
    """Number of entries of Theta, c, W and b.

    >>> unknowns(AttentionLayer.random(num_heads=2, dim=3))
    45
    """
    return sum(array.size for array in layer.parameters)


def settle(layer: AttentionLayer, xs: list[Tokens], ys: list[Outputs]) -> tuple[AttentionLayer, int]:
    """Least squares on all rows from a layer near the optimum; also the number of steps taken.

    `xs` and `ys` hold one batch per sequence length.

    >>> truth = AttentionLayer.random(num_heads=2, dim=3, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((60, 3, 3))
    >>> found, _ = settle(truth.replace(theta=1.1 * truth.theta), [x], [truth(x)])
    >>> bool(np.abs(found.theta - truth.theta).max() < 1e-10)
    True
    """
    cost, steps = _cost(layer, xs, ys), 0
    for _ in range(calibration.SETTLE_STEPS):
        step = _newton_step(layer, xs, ys)
        for shrink in (1.0, 0.5, 0.25, 0.0625):
            trial = _moved(layer, shrink * step)
            new = _cost(trial, xs, ys)
            if new < cost:
                break
        else:
            return layer, steps
        gain, layer, cost, steps = 1 - new / cost, trial, new, steps + 1
        if gain < calibration.SETTLE_GAIN:
            break
    return layer, steps


def forward(layer: AttentionLayer, x: Tokens) -> tuple[Outputs, np.ndarray, np.ndarray]:
    """Outputs, attention weights (m, n, k, k) and attended tokens (m, n, k, d), in NumPy."""
    scores = np.einsum("nad,mde,nbe->mnab", x, layer.theta, x, optimize=True)
    scores += np.einsum("md,nbd->mnb", layer.query_bias, x)[:, :, None]
    if layer.causal:
        scores = np.where(np.tril(np.ones((x.shape[1],) * 2, bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    attended = weights @ x
    return np.einsum("mnad,mdo->nao", attended, layer.w) + layer.output_bias, weights, attended


def _cost(layer: AttentionLayer, xs: list[Tokens], ys: list[Outputs]) -> float:
    return sum(float(np.sum((forward(layer, x)[0] - y) ** 2)) for x, y in zip(xs, ys) if len(x))


def _newton_step(layer: AttentionLayer, xs: list[Tokens], ys: list[Outputs]) -> Float[np.ndarray, "p"]:
    parts = [_jacobian(layer, x, y) for x, y in zip(xs, ys) if len(x)]
    jacobian = np.concatenate([part[0] for part in parts])
    rest = np.concatenate([part[1] for part in parts])
    norms = np.linalg.norm(jacobian, axis=0)
    norms = np.where(norms > 0, norms, 1.0)
    q, r = np.linalg.qr(jacobian / norms)
    return np.linalg.lstsq(r, q.T @ rest, rcond=calibration.SETTLE_CUTOFF)[0] / norms


def _jacobian(layer: AttentionLayer, x: Tokens, y: Outputs) -> tuple[np.ndarray, np.ndarray]:
    """Derivative of every scalar (rows) in every parameter (columns), and y minus the outputs."""
    n, k, _ = x.shape
    o = layer.out_dim
    outputs, weights, attended = forward(layer, x)
    values = np.einsum("nbd,mdo->mnbo", x, layer.w)
    moves = x[None, :, None] - attended[:, :, :, None]  # (m, n, a, b, d)
    spread = np.einsum("mnab,mnabp,mnbo->naomp", weights, moves, values, optimize=True)
    theta = np.einsum("nau,naomp->naomup", x, spread)
    eye = np.eye(o)
    w = np.einsum("mnap,oq->naompq", attended, eye)
    rows = n * k * o
    blocks = [theta.reshape(rows, -1), w.reshape(rows, -1), spread.reshape(rows, -1)]
    blocks.append(np.broadcast_to(eye, (n, k, o, o)).reshape(rows, o))
    return np.concatenate(blocks, axis=1), (y - outputs).ravel()


def _moved(layer: AttentionLayer, step: np.ndarray) -> AttentionLayer:
    ends = np.cumsum([array.size for array in layer.parameters])[:-1]
    moved = [a + s.reshape(a.shape) for a, s in zip(layer.parameters, np.split(step, ends))]
    return AttentionLayer(*moved, causal=layer.causal)
