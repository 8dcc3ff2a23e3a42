"""One Levenberg-Marquardt step of the scores by preconditioned conjugate gradients, in float32.

In preconditioned coordinates t the step solves (J~^T (I - P P^+) J~ + damping) t = -J~^T rest to the given
relative accuracy. Cost: one `normal_product` per inner step. The conjugate gradients are our own because they begin at
zero without a product, and gather the change of [W; b] from what the products compute anyway: a library's takes one and
a half products more, which counts where ten do, and twice as long to compile.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlearn.solve._linearize import Linearization, gradient, normal_product
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


def projected_product(
    at: Linearization, by: Preconditioner, t: Scores, causal: bool
) -> tuple[Scores, jax.Array]:
    """The Gauss-Newton matrix in preconditioned coordinates times t, and P^+ J~ t."""
    product, follow = normal_product(at, by.apply(t), causal)
    return by.transpose(product), follow


class Solved(NamedTuple):
    """The state of conjugate gradients: t and P^+ J~ t, what is left of the right side, where to go next, steps."""

    t: Scores
    follow: Any
    rest: Scores
    towards: Scores
    square: Any
    inner: Any


def solve_normal(
    at: Linearization, by: Preconditioner, right: Scores, damping: Any, accuracy: Any, most: int, causal: bool
) -> Solved:
    """Solve (matrix + damping) t = right by conjugate gradients from zero."""
    square = inner_product(right, right)
    limit = accuracy**2 * square

    def unsolved(now: Solved) -> jax.Array:
        return (now.square > limit) & (now.inner < most)

    def advance(now: Solved) -> Solved:
        product, follow = projected_product(at, by, now.towards, causal)
        product = _plus(product, damping, now.towards)
        curvature = inner_product(now.towards, product)
        flat = curvature <= 0  # by rounding, where the matrix is singular: this is as far as it goes
        length = jnp.where(flat, 0.0, now.square / curvature)
        rest = _plus(now.rest, -length, product)
        square = jnp.where(flat, 0.0, inner_product(rest, rest))
        towards = _plus(rest, square / now.square, now.towards)
        t = _plus(now.t, length, now.towards)
        return Solved(t, now.follow + length * follow, rest, towards, square, now.inner + 1)

    zero = jax.tree.map(jnp.zeros_like, right)
    start = Solved(zero, jnp.zeros_like(at.linear), right, right, square, jnp.asarray(0))
    return jax.lax.while_loop(unsolved, advance, start)


def _plus(a: Scores, factor: Any, b: Scores) -> Scores:
    """a + factor b."""
    return jax.tree.map(lambda x, y: x + factor * y, a, b)


@partial(jax.jit, static_argnames=("most", "causal"))
def gauss_newton_step(
    at: Linearization, by: Preconditioner, rest: Any, damping: Any, accuracy: Any, most: int, causal: bool
) -> Step:
    """The step for residuals `rest` (C, s k, o), which should have norm about 1 for float32's sake."""
    slope = by.transpose(gradient(at, rest, causal))
    found = solve_normal(at, by, jax.tree.map(jnp.negative, slope), damping, accuracy, most, causal)
    # Conjugate gradients leave a residual orthogonal to t: t^T A t = -slope^T t - damping t^T t, without a product.
    predicted = 0.5 * (damping * inner_product(found.t, found.t) - inner_product(slope, found.t))
    return Step(by.apply(found.t), -found.follow, found.inner, predicted)
