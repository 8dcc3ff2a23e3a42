"""The smallest eigenvalue of the Gauss-Newton matrix of a point: by Lanczos with a guarantee, or written out.

Guaranteed: Lanczos never goes below the smallest eigenvalue, so on its own it errs on the wrong side. From a
random start, however, after q steps in dimension p the estimate exceeds lambda by more than the fraction eps of
the spectrum's width with probability at most 1.648 sqrt(p) exp(-sqrt(eps) (2 q - 1)) (Kuczynski and Wozniakowski,
1992, in exact arithmetic). `lower` is what remains after subtracting that eps at delta = 1e-6.
Where that takes too many steps and the unknowns are few, the matrix is written out instead, in float64: `lower` then is its
smallest eigenvalue less the rounding.
Only estimated: Lanczos has products in float32, so eigenvalues below about 1e-6 of the largest are not resolved.
A deadline that passes leaves nothing guaranteed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from attnlearn.solve import _calibration as calibration
from attnlearn.solve._deadline import passed
from attnlearn.solve.certification._point import Point, free_coordinates, joint_product, size_of


class Spectrum(NamedTuple):
    """The estimate of the smallest eigenvalue, the part of it that is guaranteed, and the products it took."""

    estimate: float
    lower: float
    steps: int


class _Krylov(NamedTuple):
    """The last two Lanczos vectors and the last off-diagonal entry."""

    previous: np.ndarray
    current: np.ndarray
    beta: np.float32


def _lanczos(
    point: Point, state: _Krylov, steps: int, deadline: float | None
) -> tuple[_Krylov, list[np.float32], list[np.float32]]:
    """So many further steps, fewer at the deadline, and the diagonal and off-diagonal entries that they add."""
    diagonal, beside = [], []
    for _ in range(steps):
        if passed(deadline):
            break
        previous, current, beta = state
        image = joint_product(point, current)
        image -= beta * previous
        alpha = image @ current
        image -= alpha * current
        # Rounding leaves a trace of the gauge, which would grow into a false eigenvalue 0.
        image = free_coordinates(point, image).flat()
        beta = np.linalg.norm(image)
        state = _Krylov(current, image / max(beta, np.finfo(np.float32).tiny), beta)
        diagonal.append(alpha)
        beside.append(beta)
    return state, diagonal, beside


def lanczos_spectrum(
    point: Point,
    seed: int,
    delta: float,
    more: bool,
    on_step: Callable[..., None] | None,
    deadline: float | None = None,
    hurried: bool = False,
) -> Spectrum | None:
    """Smallest eigenvalue by Lanczos from a random start, with its guaranteed part.

    None where a guarantee would take many steps and there are `more` examples, with which it takes fewer. A `hurried` run gives up
    where it would take many steps; nothing is guaranteed then.
    """
    dimension = size_of(point)
    most = 2 * min(calibration.MATRIX_MOST, dimension)  # with fewer products the matrix is written out
    rng = np.random.default_rng([seed, 0x1A2C])
    first = free_coordinates(point, rng.standard_normal(dimension).astype(np.float32)).flat()
    state = _Krylov(np.zeros_like(first), first / np.linalg.norm(first), np.float32(0))
    diagonal, beside = np.zeros(0), np.zeros(0)
    exponent = np.log(1.648 * np.sqrt(dimension) / delta)
    while True:
        state, alpha, beta = _lanczos(point, state, calibration.LANCZOS_BLOCK, deadline)
        diagonal, beside = np.append(diagonal, alpha), np.append(beside, beta)
        # Curvature that is zero to rounding makes the coordinates overflow float32: nothing is resolved.
        resolved = np.isfinite(diagonal).all() and np.isfinite(beside).all()
        if not resolved or passed(deadline):
            return Spectrum(0.0, 0.0, len(diagonal))
        values = scipy.linalg.eigvalsh_tridiagonal(diagonal, beside[:-1])
        smallest, largest = float(values[0]), float(values[-1])
        steps, lower = len(diagonal), _guaranteed(smallest, largest, exponent, len(diagonal))
        if on_step is not None:
            on_step(products=steps, eigenvalue=smallest, guaranteed=lower)
        # The least number of steps that can give a guarantee, for the estimate only falls.
        needed = exponent / 2 / np.sqrt(max(smallest, np.finfo(float).tiny) / largest)
        many = steps >= calibration.MANY_PRODUCTS and needed > calibration.INNER_MOST
        if many and more:
            return None
        if many and hurried:
            return Spectrum(max(smallest, 0.0), 0.0, steps)
        if lower >= calibration.ENOUGH_SHARE * smallest or max(steps, needed) >= most:
            return Spectrum(max(smallest, 0.0), float(lower), steps)


def _guaranteed(smallest: float, largest: float, exponent: float, steps: int) -> float:
    """What the smallest eigenvalue is at least, from the extreme values of the tridiagonal matrix after so many steps.

    smallest - lambda <= eps (Lambda - lambda) and Lambda <= largest / (1 - eps).
    """
    eps = (exponent / (2 * steps - 1)) ** 2
    return max(0.0, (smallest - eps * largest / (1 - eps)) / (1 - eps)) if eps < 1 else 0.0


def dense_spectrum(
    point: Point, on_step: Callable[..., None] | None, deadline: float | None = None
) -> Spectrum:
    """Smallest eigenvalue of the matrix itself, column by column; gauge directions, which count for nothing, have one."""
    size = size_of(point)
    matrix = np.empty((size, size))
    for place, unit in enumerate(np.eye(size)):
        if passed(deadline):
            return Spectrum(0.0, 0.0, place)
        matrix[place] = joint_product(point, unit) + unit - free_coordinates(point, unit).flat()
        if on_step is not None and place % calibration.LANCZOS_BLOCK == 0:
            on_step(products=place + 1, of=size)
    if not np.isfinite(matrix).all():
        return Spectrum(0.0, 0.0, size)
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    smallest, rounding = float(values[0]), calibration.RIDGE / calibration.DIGIT * float(values[-1])
    return Spectrum(max(smallest, 0.0), max(smallest - rounding, 0.0), size)
