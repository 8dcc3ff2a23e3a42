"""The tangent kernel in closed form, its hard margin without intercept, and the comparator built from it.

    K_ij = <grad Phi_i, grad Phi_j> = sum_h s_h^2 (<A_ih X_i, A_jh X_j> + <X_i^T J_ih X_i, X_j^T J_jh X_j>)

Heads are streamed: two n x n products a head, with features of one head only (n max(T d, d^2) numbers); the
n x H(T d + d^2) Jacobian is never formed. The margin gamma = max_{‖v‖=1} min_i y_i <grad Phi_i, v> is the
distance of 0 from the hull of the y_i grad Phi_i: minimise a^T (y y^T * K) a over the simplex. `separate` gives
min_i (Q a)_i / sqrt(a^T Q a) of the solver's a: a margin that v attains on the kernel's examples, whatever the solver
did. `slopes_along` evaluates <grad Phi_i, v> of any examples in one forward pass.
Cost: 2 n^2 H (T d + d^2) and the QP's n^3. What can fail: a margin <= 0 means not separable by this kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._jax import jax, jnp
from attnlearn.training._calibration import MARGIN_RIDGE, SEPARABLE
from attnlearn.training._loss import Chunks, values
from attnlearn.training._model import Array, Model, Weights


class Separation(NamedTuple):
    """The margin that was attained, and the combination a_i y_i of gradients that attains it."""

    margin: float
    coefficients: Any


@partial(jax.jit, static_argnames=("model",))
def tangent_kernel(model: Model, weights: Weights, scales: Array, x: Array) -> Float[Array, "n n"]:
    """K of the examples x (n, k, d); exactly symmetric."""
    num = x.shape[0]

    def add_head(total, head):
        one = Weights(head[0][None], head[1][None])
        features_u, features_w = jax.vmap(lambda example: _head_gradient(model, one, head[2], example))(x)
        a, b = features_u.reshape(num, -1), features_w.reshape(num, -1)
        return total + a @ a.T + b @ b.T, None

    heads = (*weights, jnp.broadcast_to(scales, (len(weights.u),)))
    kernel, _ = jax.lax.scan(add_head, jnp.zeros((num, num), x.dtype), heads)
    return (kernel + kernel.T) / 2


def _head_gradient(model: Model, one: Weights, scale: Array, example: Array) -> tuple[Array, Array]:
    _, saved = model.forward(model.pack(one), example[None])
    return model.backward(saved, example[None], scale[None, None])


def separate(kernel: Float[np.ndarray, "n n"], y: Float[np.ndarray, "n"]) -> Separation:
    """The hard margin of the labels y under `kernel`, without intercept; margin <= 0: not separable.

    Without a separating direction the combination is that of the mean gradient.

    >>> round(separate(np.eye(2), np.array([1.0, -1.0])).margin, 6)
    0.707107
    """
    import piqp

    num = len(y)
    q = np.asarray(kernel, np.float64) * np.outer(y, y).astype(np.float64)
    scaled = q * (num / max(float(np.trace(q)), float(np.finfo(np.float32).tiny)))
    solver = piqp.DenseSolver()
    solver.settings.eps_abs, solver.settings.eps_rel = 1e-10, 1e-10
    solver.setup(
        P=scaled + MARGIN_RIDGE * np.eye(num),
        c=np.zeros(num),
        A=np.ones((1, num)),
        b=np.ones(1),
        x_l=np.zeros(num),
        x_u=np.full(num, np.inf),
    )
    solver.solve()
    a = np.maximum(np.nan_to_num(np.asarray(solver.result.x, np.float64)), 0)
    a /= max(a.sum(), np.finfo(float).tiny)
    if not a @ q @ a > SEPARABLE * np.trace(q) / num:
        a = np.full(num, 1 / num)  # 0 is in the hull: no direction separates, the mean is as good as any
    length = float(np.sqrt(max(a @ q @ a, np.finfo(np.float32).tiny)))
    return Separation(float((q @ a).min() / length), a * np.asarray(y, np.float64) / length)


@partial(jax.jit, static_argnames=("model",))
def combine_gradients(
    model: Model, weights: Weights, scales: Array, x: Array, coefficients: Array
) -> Weights:
    """sum_i coefficients_i grad Phi_i, for chunks x (b, c, k, d)."""
    packed = model.pack(weights)

    def one(total, chunk):
        tokens, factors = chunk
        _, saved = model.forward(packed, tokens)
        return jax.tree.map(jnp.add, total, model.backward(saved, tokens, factors[:, None] * scales)), None

    total, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, packed), (x, coefficients))
    return model.unpack(total)


@partial(jax.jit, static_argnames=("model",))
def slopes_along(model: Model, weights: Weights, direction: Weights, scales: Array, x: Array) -> Array:
    """<grad Phi_i, direction> of every example, for chunks x (b, c, k, d)."""

    def one(tokens):
        def phi(there):
            return (model.forward(model.pack(there), tokens)[0] * scales).sum(axis=1)

        return jax.jvp(phi, (weights,), (direction,))[1]

    return jax.lax.map(one, x)


@partial(jax.jit, static_argnames=("model",))
def losses_along(
    model: Model, weights: Weights, direction: Weights, radii: Array, scales: Array, chunks: Chunks
) -> Array:
    """L(weights + radius direction) for every radius."""

    def one(radius):
        there = jax.tree.map(lambda p, v: p + radius * v, weights, direction)
        margins = chunks.y * values(model, there, scales, chunks.x)
        return jnp.sum(chunks.weight * jax.nn.softplus(-margins))

    return jax.lax.map(one, radii)


def largest_eigenvalue(kernel: Float[np.ndarray, "n n"]) -> float:
    """lambda_max(K) / n, so that lambda / 4 bounds the Gauss-Newton part of the loss Hessian at the start; never 0.

    >>> round(largest_eigenvalue(np.ones((4, 4))), 9)
    1.0
    """
    from scipy.linalg import eigh

    num = len(kernel)
    top = eigh(np.asarray(kernel, np.float64), eigvals_only=True, subset_by_index=[num - 1, num - 1])
    return max(float(top[0] / num), float(np.finfo(np.float32).tiny))
