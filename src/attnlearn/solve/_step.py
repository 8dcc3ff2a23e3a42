"""One Levenberg-Marquardt step of the scores by preconditioned conjugate gradients, in the precision of the linearization.

In preconditioned coordinates t the step solves (J~^T (I - P P^+) J~ + damping) t = -J~^T rest to the given
relative accuracy. Cost: one `normal_product` per inner step. In float64, where conjugate gradients may take as many steps as there
are unknowns, the matrix is written out instead, by as many products: directions of 1e-12 of the curvature are then solved for, and
every damping is tried at no further cost. The conjugate gradients are our own because they begin at
zero without a product, and gather the change of [W; b] from what the products compute anyway: a library's takes one and
a half products more, which counts where ten do. Their residuals are kept, for they solve the system at every other damping too: when a
step fails, the next one takes half a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnlearn.scores import Preconditioner, Scores
from attnlearn.solve._chunks import Pieces, cache_bytes
from attnlearn.solve._deadline import passed
from attnlearn.solve._linearize import Linearization, gradient, linear_response, normal_product


class Krylov(NamedTuple):
    """What conjugate gradients leave behind: their residuals as unit vectors, and the tridiagonal matrix of the system in them."""

    vectors: list[np.ndarray]
    diagonal: np.ndarray
    beside: np.ndarray
    size: float
    damping: float

    @classmethod
    def of(
        cls, vectors: list[np.ndarray], lengths: list[float], ratios: list[float], size: float, damping: float
    ) -> Krylov | None:
        """From the step lengths and the ratios of successive squared residuals; None where no step was made."""
        if not lengths:
            return None
        inverse, ratio = 1 / np.array(lengths), np.array(ratios)
        diagonal = inverse + np.concatenate([[0.0], (ratio * inverse)[:-1]])
        return cls(vectors[: len(lengths)], diagonal, (np.sqrt(ratio) * inverse)[:-1], size, damping)

    @property
    def right(self) -> np.ndarray:
        """The right side that the space belongs to."""
        return self.size * self.vectors[0]

    def solve(self, damping: float) -> np.ndarray:
        """The solution in this space, as accurate as the first one where the damping is no lower."""
        matrix = np.diag(self.diagonal + (damping - self.damping))
        matrix += np.diag(self.beside, 1) + np.diag(self.beside, -1)
        found = np.linalg.solve(matrix, self.size * np.eye(len(matrix))[0])
        t = np.zeros_like(self.vectors[0])
        for part, vector in zip(found.astype(t.dtype), self.vectors):
            t += part * vector
        return t


class Step(NamedTuple):
    """Direction of the scores and of [W; b], inner steps, the decrease of half the squares it promises, and what solves for others."""

    scores: Scores
    linear: np.ndarray
    inner: int
    predicted: float
    space: Krylov | None = None


def projected_product(
    at: Linearization, by: Preconditioner, t: np.ndarray, spared: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The Gauss-Newton matrix in preconditioned coordinates times t, and P^+ J~ t; `spared` as in `normal_product`."""
    product, follow = normal_product(at, by.apply(at.scores.shaped(t)), spared)
    return by.transpose(product).flat(), follow


class Solved(NamedTuple):
    """What conjugate gradients found: t, P^+ J~ t, how many steps it took, and the space, where memory allows to keep it."""

    t: np.ndarray
    follow: np.ndarray
    inner: int
    space: Krylov | None = None


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
    size, limit, keep = square**0.5, accuracy**2 * square, most * right.nbytes <= cache_bytes()
    vectors, lengths, ratios = [], [], []
    while square > limit and inner < most and not passed(deadline):
        if keep:
            vectors.append(rest * ((-1) ** inner / square**0.5))
        product, moved = projected_product(at, by, towards)
        product += damping * towards
        inner += 1
        curvature = float(towards @ product)
        if not curvature > 0:  # by rounding, where the matrix is singular: this is as far as it goes
            keep = False
            break
        length = square / curvature
        t += length * towards
        follow += length * moved
        rest -= length * product
        before, square = square, float(rest @ rest)
        lengths.append(length)
        ratios.append(square / before)
        towards = rest + ratios[-1] * towards
    space = Krylov.of(vectors, lengths, ratios, size, damping) if keep else None
    return Solved(t, follow, inner, space)


class Matrix(NamedTuple):
    """The Gauss-Newton matrix by its eigenvalues and eigenvectors, and P^+ J~ of every coordinate."""

    values: np.ndarray
    vectors: np.ndarray
    follow: np.ndarray

    def solve(self, right: np.ndarray, damping: float) -> Solved:
        """(matrix + damping)^-1 right."""
        t = self.vectors @ ((self.vectors.T @ right) / (self.values + damping))
        return Solved(t, np.tensordot(t, self.follow, axes=1), len(t))


def written_out(
    at: Linearization, by: Preconditioner, most: int, deadline: float | None = None
) -> Matrix | None:
    """The matrix, in float64 and where it takes no more than `most` products; otherwise None."""
    size = at.scores.flat().size
    if at.chunks.dtype != np.float64 or size > most:
        return None
    columns = []
    for one in np.eye(size):
        if passed(deadline):
            return None
        columns.append(projected_product(at, by, one))
    matrix = np.stack([product for product, _ in columns])
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    rounding = np.finfo(np.float64).eps * values[-1]
    return Matrix(np.maximum(values, rounding), vectors, np.stack([follow for _, follow in columns]))


def gauss_newton_step(
    at: Linearization,
    by: Preconditioner,
    rest: Pieces | Sequence[np.ndarray],
    damping: float,
    accuracy: float,
    most: int,
    deadline: float | None = None,
    matrix: Matrix | None = None,
    space: Krylov | None = None,
) -> Step:
    """The step for residuals `rest` (s k, o) by chunk, which should have norm about 1 for float32's sake.

    `space` is that of the step that failed at a lower damping.
    """
    slope = -space.right if space is not None else by.transpose(gradient(at, rest)).flat()
    if space is not None:
        t = space.solve(damping)
        found = Solved(t, linear_response(at, by.apply(at.scores.shaped(t)))[0], 0, space)
    elif matrix is None:
        found = solve_normal(at, by, -slope, damping, accuracy, most, deadline)
    else:
        found = matrix.solve(-slope, damping)
    # Conjugate gradients leave a residual orthogonal to t: t^T A t = -slope^T t - damping t^T t, without a product.
    predicted = 0.5 * (damping * float(found.t @ found.t) - float(slope @ found.t))
    return Step(by.apply(at.scores.shaped(found.t)), -found.follow, found.inner, predicted, found.space)
