"""Least squares on the features: the global optimum over all linear-attention layers, and how well the examples determine it.

The normal matrix A = (1/n) sum of phi phi^T over rows is decomposed once; its smallest eigenvalue is the uniqueness certificate.
Directions whose eigenvalue is rounding are left at zero. Two corrections with true residuals remove the rounding of the normal
equations. Cost: one product of P x P for every row, and one eigendecomposition of A and one of every block. What can fail: P grows
like d^3 / 2, and A with P^2 (d = 16: 43 MB, d = 32: 2.4 GB).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.linalg

from attnlearn.recovery.linear import _calibration as calibration
from attnlearn.recovery.linear._features import Coordinates
from attnlearn.solve._batch import Batch

CORRECTIONS = 2


class Sums(NamedTuple):
    """Sums over the rows of some sequences: phi phi^T, phi y^T, y^2, rows; and the roundings an entry may have."""

    normal: np.ndarray
    products: np.ndarray
    squares: float
    rows: int
    roundings: int


@dataclass(frozen=True)
class Regression:
    """Coefficients (P, o) of the scaled features, and what the examples say of them.

    `smallest` is the smallest eigenvalue of the normal matrix, less a bound on the error of its computation; not positive where the
    examples do not determine the features. `blocks` has the same for the second moment of a unit in each of several independent
    blocks of units. `residual` is the root mean square of what the fit leaves of a row's output, `size` that of the output.
    """

    coordinates: Coordinates
    coefficients: np.ndarray
    smallest: float
    blocks: tuple[float, ...]
    rows: int
    residual: float
    size: float

    @property
    def determined(self) -> bool:
        """Whether the normal matrix is regular beyond rounding."""
        return self.smallest > 0

    @property
    def error(self) -> float:
        """The residual as a share of the outputs."""
        return self.residual / self.size if self.size > 0 else 0.0


def regress(coordinates: Coordinates, side: Batch) -> Regression:
    """The least-squares fit to these examples."""
    units = np.arange(side.num) if side.groups is None else np.unique(side.groups, return_inverse=True)[1]
    count = int(units.max()) + 1
    rows = side.x.shape[0] * side.x.shape[1]
    wanted = rows // (calibration.ROWS_PER_BLOCK * max(1, coordinates.number))
    number = int(np.clip(wanted, 1, min(calibration.BLOCKS, count)))
    block = units * number // count
    total, found = None, []
    for index in range(number):
        members = np.flatnonzero(block == index)
        sums = _sums(coordinates, _taken(side, members))
        if number > 1:
            found.append(_smallest(sums)[0] * sums.rows / (len(np.unique(units[members])) * side.x.shape[1]))
        total = sums if total is None else _added(total, sums)
    assert total is not None
    smallest, solve = _smallest(total)
    blocks = tuple(found) or (smallest * total.rows / (count * side.x.shape[1]),)
    coefficients, residual = _corrected(coordinates, side, total, solve)
    size = float(np.sqrt(total.squares / max(total.rows, 1)))
    return Regression(coordinates, coefficients, smallest, blocks, total.rows, residual, size)


def residual_of(regression: Regression, side: Batch) -> float:
    """Root mean square of what the fit leaves of these outputs, as a share of their own."""
    rest = squares = 0.0
    for part in regression.coordinates.rows(side):
        rest += float(np.sum((part.outputs - part.features @ regression.coefficients) ** 2))
        squares += float(np.sum(part.outputs**2))
    return float(np.sqrt(rest / squares)) if squares > 0 else 0.0


def _taken(side: Batch, members: np.ndarray) -> Batch:
    return Batch(side.x[members], side.y[members], None if side.mask is None else side.mask[members])


def _sums(coordinates: Coordinates, side: Batch) -> Sums:
    number, out = coordinates.number, side.y.shape[2]
    total = Sums(np.zeros((number, number)), np.zeros((number, out)), 0.0, 0, 2 * side.x.shape[1] + 8)
    longest = 0
    for part in coordinates.rows(side):
        squares = float(np.sum(part.outputs**2))
        products = part.features.T @ part.outputs
        found = Sums(part.features.T @ part.features, products, squares, len(part.outputs), 1)
        total, longest = _added(total, found), max(longest, len(part.outputs))
    return total._replace(roundings=total.roundings + longest)


def _added(first: Sums, second: Sums) -> Sums:
    return Sums(
        first.normal + second.normal, first.products + second.products, first.squares + second.squares,
        first.rows + second.rows, first.roundings + second.roundings,
    )  # fmt: skip


def _smallest(sums: Sums) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """The smallest eigenvalue of the mean over rows less its rounding, and eigenvectors with the inverse eigenvalues that count.

    An entry of phi phi^T is a sum of products with `roundings` roundings at most; errors of entries add up to at most the trace
    times that, in norm.
    """
    rows = max(sums.rows, 1)
    values, vectors = scipy.linalg.eigh(sums.normal / rows)
    rounding = (sums.roundings + len(values)) * np.finfo(float).eps * float(np.sum(np.abs(values)))
    counts = values > rounding
    inverse = np.where(counts, 1 / np.where(counts, values, 1.0), 0.0) / rows
    return float(values[0]) - rounding, (vectors, inverse)


def _corrected(
    coordinates: Coordinates, side: Batch, total: Sums, solve: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, float]:
    """Coefficients after corrections with true residuals, and the root mean square of the last residuals."""
    vectors, inverse = solve
    left, residual = total.products, 0.0
    coefficients = np.zeros_like(left)
    for _ in range(CORRECTIONS + 1):
        coefficients = coefficients + vectors @ (inverse[:, None] * (vectors.T @ left))
        left, residual = np.zeros_like(left), 0.0
        for part in coordinates.rows(side):
            rest = part.outputs - part.features @ coefficients
            left += part.features.T @ rest
            residual += float(np.sum(rest**2))
    return coefficients, float(np.sqrt(residual / max(total.rows, 1)))
