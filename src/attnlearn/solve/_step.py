"""One Levenberg-Marquardt step of the scores by preconditioned conjugate gradients, in the precision of the linearization.

In preconditioned coordinates t the step solves (J~^T (I - P P^+) J~ + damping) t = -J~^T rest to the given
relative accuracy. Cost: one `normal_product` per inner step. The conjugate gradients are our own because they begin at
zero without a product, and gather the change of [W; b] from what the products compute anyway: a library's takes one and
a half products more, which counts where ten do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnlearn.solve._deadline import passed
from attnlearn.solve._linearize import Linearization, gradient, normal_product
from attnlearn.solve._precondition import Preconditioner
from attnlearn.solve._scores import Scores


class Step(NamedTuple):
    """Direction of the scores and of [W; b], inner steps, and the decrease of half the squares it promises."""

    scores: Scores
    linear: np.ndarray
    inner: int
    predicted: float


def projected_product(at: Linearization, by: Preconditioner, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Gauss-Newton matrix in preconditioned coordinates times t, and P^+ J~ t."""
    product, follow = normal_product(at, by.apply(at.scores.shaped(t)))
    return by.transpose(product).flat(), follow


class Solved(NamedTuple):
    """What conjugate gradients found: t, P^+ J~ t, and how many steps it took."""

    t: np.ndarray
    follow: np.ndarray
    inner: int


def solve_normal(
    at: Linearization,
    by: Preconditioner,
    right: np.ndarray,
    damping: float,
    accuracy: float,
    most: int,
    deadline: float | None = None,
) -> Solved:
    """Solve (matrix + damping) t = right by conjugate gradients from zero, as far as `most` steps and the deadline allow."""
    t, follow, rest = np.zeros_like(right), np.zeros_like(at.linear), right.copy()
    towards, square, inner = right, float(right @ right), 0
    limit = accuracy**2 * square
    while square > limit and inner < most and not passed(deadline):
        product, moved = projected_product(at, by, towards)
        product += damping * towards
        inner += 1
        curvature = float(towards @ product)
        if not curvature > 0:  # by rounding, where the matrix is singular: this is as far as it goes
            break
        length = square / curvature
        t += length * towards
        follow += length * moved
        rest -= length * product
        before, square = square, float(rest @ rest)
        towards = rest + (square / before) * towards
    return Solved(t, follow, inner)


def gauss_newton_step(
    at: Linearization,
    by: Preconditioner,
    rest: Sequence[np.ndarray],
    damping: float,
    accuracy: float,
    most: int,
    deadline: float | None = None,
) -> Step:
    """The step for residuals `rest` (s k, o) by chunk, which should have norm about 1 for float32's sake."""
    slope = by.transpose(gradient(at, rest)).flat()
    found = solve_normal(at, by, -slope, damping, accuracy, most, deadline)
    # Conjugate gradients leave a residual orthogonal to t: t^T A t = -slope^T t - damping t^T t, without a product.
    predicted = 0.5 * (damping * float(found.t @ found.t) - float(slope @ found.t))
    return Step(by.apply(at.scores.shaped(found.t)), -found.follow, found.inner, predicted)
