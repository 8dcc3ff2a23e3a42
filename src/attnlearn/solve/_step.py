"""One Levenberg-Marquardt step of the scores by preconditioned conjugate gradients (lineax), in float32.

In preconditioned coordinates t the step solves (J~^T (I - P P^+) J~ + damping) t = -J~^T rest to the given
relative accuracy. Cost: one `normal_product` per inner step, and half of one for the change of [W; b].
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax

from attnlearn.solve._calibration import OPERATOR_SCALE
from attnlearn.solve._linearize import Linearization, gradient, linear_response, normal_product
from attnlearn.solve._precondition import Preconditioner
from attnlearn.solve._scores import Scores


class Step(NamedTuple):
    """Direction of the scores and of [W; b], inner steps, and the decrease of half the squares it promises."""

    scores: Scores
    linear: Any
    inner: Any
    predicted: Any


def inner_product(a: Any, b: Any) -> jax.Array:
    """Euclidean inner product of two trees of arrays."""
    return jax.tree.reduce(jnp.add, jax.tree.map(lambda x, y: jnp.sum(x * y), a, b))


def tree_norm(a: Any) -> jax.Array:
    """Euclidean norm of a tree of arrays."""
    return jnp.sqrt(inner_product(a, a))


def projected_product(at: Linearization, by: Preconditioner, t: Scores, causal: bool) -> Scores:
    """The Gauss-Newton matrix in preconditioned coordinates."""
    return by.transpose(normal_product(at, by.apply(t), causal))


def solve_normal(
    at: Linearization, by: Preconditioner, right: Scores, damping: Any, accuracy: Any, most: int, causal: bool
) -> tuple[Scores, jax.Array]:
    """Solve (matrix + damping) t = right by conjugate gradients; returns t and the number of inner steps."""

    def scaled(t: Scores) -> Scores:
        product = projected_product(at, by, t, causal)
        return jax.tree.map(lambda p, q: OPERATOR_SCALE * (p + damping * q), product, t)

    structure = jax.eval_shape(lambda: right)
    operator = lineax.FunctionLinearOperator(scaled, structure, lineax.positive_semidefinite_tag)
    solver = lineax.CG(
        rtol=0.0, atol=accuracy * tree_norm(right), norm=tree_norm, max_steps=most, stabilise_every=None
    )
    found = lineax.linear_solve(operator, right, solver, throw=False)
    return jax.tree.map(lambda leaf: OPERATOR_SCALE * leaf, found.value), found.stats["num_steps"]


@partial(jax.jit, static_argnames=("most", "causal"))
def gauss_newton_step(
    at: Linearization, by: Preconditioner, rest: Any, damping: Any, accuracy: Any, most: int, causal: bool
) -> Step:
    """The step for residuals `rest` (C, s k, o), which should have norm about 1 for float32's sake."""
    slope = by.transpose(gradient(at, rest, causal))
    t, inner = solve_normal(at, by, jax.tree.map(jnp.negative, slope), damping, accuracy, most, causal)
    # Conjugate gradients leave a residual orthogonal to t: t^T A t = -slope^T t - damping t^T t, without a product.
    predicted = 0.5 * (damping * inner_product(t, t) - inner_product(slope, t))
    tangent = by.apply(t)
    return Step(tangent, -linear_response(at, tangent, causal)[0], inner, predicted)
