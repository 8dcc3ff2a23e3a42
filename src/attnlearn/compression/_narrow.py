"""Narrow: heads that fit into query, key, value and output factors of a given width.

Minimises ‖P W - Y‖^2 over W_i = V_i O_i with V_i (d, r), scores fixed, by alternating least squares. Everything happens
on G = P^T P and M = P^T Y, so the number of examples does not matter: the O_i are one small linear system, the V_i a
conjugate gradient solve with the operator V -> [G (V O)]_i O_i^T. The start truncates each W_i in the metric of its own
mixed tokens. The squared error falls with every half step; that it falls to the global optimum is not proved.

[Theta_i; c_i^T] is truncated to the same width in white coordinates when it is wider.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, cg

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.compression import _calibration as calibration
from attnlearn.solve._attend import split_linear
from attnlearn.solve._chunks import on_threads
from attnlearn.solve._drop import WhitenedRegression
from attnlearn.solve._rank import largest_rank

Blocks = Float[np.ndarray, "m d r"]


def narrow(layer: AttentionLayer, ground: WhitenedRegression, width: int) -> AttentionLayer:
    """The layer with every [Theta; c] and W of rank at most `width`; W is refitted under that limit."""
    inside = ground.enter(layer)
    scores = np.concatenate([inside.theta, inside.query_bias[:, None, :]], axis=1)
    limited = truncated(scores, width)
    if max(largest_rank(scores), largest_rank(inside.w)) <= width:
        return layer
    inside = inside._replace(theta=limited[:, :-1], query_bias=limited[:, -1])
    matrix, moment = ground.normal(inside)
    with on_threads():
        linear = limited_regression(matrix, moment, len(inside.theta), width)
    w, b = split_linear(linear, len(inside.theta))
    return ground.leave(Parameters(inside.theta, w, inside.query_bias, b))


def truncated(matrices: Float[np.ndarray, "m a b"], width: int) -> Float[np.ndarray, "m a b"]:
    """The best approximation of each matrix of rank `width`."""
    u, s, vt = np.linalg.svd(matrices, full_matrices=False)
    return (u[:, :, :width] * s[:, None, :width]) @ vt[:, :width]


def limited_regression(
    matrix: Float[np.ndarray, "s s"], moment: Float[np.ndarray, "s o"], heads: int, width: int
) -> Float[np.ndarray, "s o"]:
    """[W; b] with the rank of every W_i at most `width`, from the normal equations of the unlimited fit."""
    d, width = (len(matrix) - 1) // heads, min(width, moment.shape[1])
    # The bias is free: eliminated once, it leaves a problem in the W_i alone.
    ones, corner = matrix[:-1, -1:], max(matrix[-1, -1], np.finfo(float).tiny)
    gram, right = matrix[:-1, :-1] - ones @ ones.T / corner, moment[:-1] - ones @ moment[-1:] / corner
    gram = gram + calibration.RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    values = _first_values(gram, right, heads, width)
    previous = -np.inf
    for _ in range(calibration.ALTERNATIONS):
        outputs, explained = _outputs(gram, right, values)
        if explained - previous <= calibration.SETTLED * abs(explained):
            break
        previous = explained
        values = _values(gram, right, values, outputs)
    outputs, _ = _outputs(gram, right, values)
    w = (values @ outputs.reshape(heads, width, -1)).reshape(heads * d, -1)
    b = (moment[-1:] - ones.T @ w) / corner
    return np.concatenate([w, b])


def _first_values(gram: np.ndarray, right: np.ndarray, heads: int, width: int) -> Blocks:
    d = len(gram) // heads
    w = scipy.linalg.solve(gram, right, assume_a="pos")
    values = np.empty((heads, d, width))
    for head in range(heads):
        block = slice(head * d, (head + 1) * d)
        root = scipy.linalg.cholesky(gram[block, block], lower=False)
        left = np.linalg.svd(root @ w[block], full_matrices=False)[0][:, :width]
        values[head] = scipy.linalg.solve_triangular(root, left)
    return values


def _outputs(gram: np.ndarray, right: np.ndarray, values: Blocks) -> tuple[np.ndarray, float]:
    """The best O (m r, o) for these V, and how much of the squares it explains."""
    spread = scipy.linalg.block_diag(*values)
    small, target = spread.T @ gram @ spread, spread.T @ right
    small = small + calibration.RIDGE * np.trace(small) / len(small) * np.eye(len(small))
    outputs = scipy.linalg.solve(small, target, assume_a="pos")
    return outputs, float(np.sum(outputs * target))


def _values(gram: np.ndarray, right: np.ndarray, values: Blocks, outputs: np.ndarray) -> Blocks:
    """A few conjugate gradient steps towards the best V for these O, from the current ones."""
    m, d, r = values.shape
    parts = outputs.reshape(m, r, -1)
    # With orthonormal rows in every O_i the operator is G restricted, and its diagonal blocks invert it nearly.
    turned = [scipy.linalg.rq(part, mode="economic") for part in parts]
    parts = np.stack([rows for _, rows in turned])
    values = np.stack([value @ corner for value, (corner, _) in zip(values, turned)])
    factors = [
        scipy.linalg.cho_factor(gram[i * d : (i + 1) * d, i * d : (i + 1) * d], lower=True) for i in range(m)
    ]

    def back(full: np.ndarray) -> Blocks:
        return full.reshape(m, d, -1) @ np.swapaxes(parts, 1, 2)

    def operator(v: Blocks) -> Blocks:
        return back(gram @ (v @ parts).reshape(m * d, -1))

    def inverse(v: Blocks) -> Blocks:
        return np.stack([scipy.linalg.cho_solve(factor, block) for factor, block in zip(factors, v)])

    def linear(function: Callable[[Blocks], Blocks]) -> LinearOperator:
        def product(flat: np.ndarray) -> np.ndarray:
            return function(flat.reshape(values.shape)).reshape(-1)

        shape = values.size, values.size
        return LinearOperator(shape, product, dtype=np.float64)  # pyright: ignore[reportCallIssue]

    rest = (back(right) - operator(values)).reshape(-1)
    step, _ = cg(
        linear(operator),
        rest,
        rtol=calibration.FACTOR_ACCURACY,
        maxiter=calibration.FACTOR_STEPS,
        M=linear(inverse),
    )
    return values + step.reshape(values.shape)
