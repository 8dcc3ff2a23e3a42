"""Eigenvalues of a point's Gauss-Newton matrices that are guaranteed: by Lanczos from a random start, or written out.

Lanczos never goes below the smallest eigenvalue lambda, so on its own it errs on the wrong side. Its polynomial says how far it
can be off. After q steps from a start g, with Ritz values theta_j and off-diagonal entries beta_j,

    ‖prod_j (A - theta_j) g‖ = ‖g‖ prod_j beta_j,   so   |prod_j (lambda - theta_j)| <= ‖g‖ / |<g, v>| prod_j beta_j

for every eigenvalue lambda with its eigenvector v. For a Gaussian g, |<g, v>| is below delta sqrt(pi / 2) with probability at most
delta. Whatever lies so far outside the Ritz values that the product is larger is therefore excluded, with confidence 1 - delta (van
Dorsselaer, Hochstenbach and van der Vorst, 2000). The bound takes the spectrum as it is: a few large eigenvalues cost a few steps.
Vectors are kept orthogonal to all before them, as exact arithmetic would have them, as far as memory allows.
Products are in float32, so a millionth of the largest eigenvalue is subtracted for rounding.
Where bounds matter the matrix is S - tau A: that it is at least mu > 0 says both that S >= mu and that A <= S / tau, so what W and b can
undo is known without a look of its own, and far more sharply than from the largest eigenvalue of A - S.
Where that takes too many steps and the unknowns are few, the matrix is written out instead, in float64: `lower` then is its
smallest eigenvalue less the rounding. A deadline that passes leaves nothing guaranteed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize

from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import cache_bytes
from attnlearn.solve._deadline import passed
from attnlearn.solve.certification._point import (
    Point,
    free_coordinates,
    kernels,
    output_product,
    score_product,
    size_of,
)


class Spectrum(NamedTuple):
    """The estimate of the smallest eigenvalue of S - `spared` A, the part of it that is guaranteed, and the products it took."""

    estimate: float
    lower: float
    steps: int
    spared: float = 0.0


class Tridiagonal(NamedTuple):
    """What Lanczos leaves after some steps: Ritz values, off-diagonal entries, and ln(‖g‖ / |<g, v>|), which is exceeded rarely."""

    values: np.ndarray
    beside: np.ndarray
    chance: float

    def excess(self, place: float) -> float:
        """Where positive, a `place` outside the Ritz values is no eigenvalue; the logarithm of the ratio in the module's bound."""
        distances = np.maximum(np.abs(self.values - place), np.finfo(float).tiny)
        return float(np.sum(np.log(distances) - np.log(self.beside))) - self.chance

    @property
    def rounding(self) -> float:
        """The part of the largest eigenvalue that float32 does not resolve."""
        return calibration.in_precision(calibration.RIDGE / calibration.DIGIT, np.float32) * self.values[-1]

    def lower(self) -> float:
        """What the smallest eigenvalue is at least; 0 where nothing is guaranteed."""
        if self.excess(0.0) <= 0:
            return 0.0
        return max(0.0, self._edge(self.values[0], 0.0) - self.rounding)

    def upper(self) -> float:
        """What the largest eigenvalue is at most; infinite where nothing better than several times the Ritz value is known."""
        largest = self.values[-1]
        far = largest / calibration.DIGIT
        if not self.excess(far) > 0:
            return np.inf
        return self._edge(largest, far) + self.rounding

    def _edge(self, value: float, far: float) -> float:
        """Where the excess becomes positive on the way from an outermost Ritz value to a place where it is."""
        return (
            value
            if self.excess(value) > 0
            else scipy.optimize.root_scalar(self.excess, bracket=(value, far)).root
        )


class Lanczos:
    """Steps with a symmetric matrix from a Gaussian start; `kept` has the vectors, as many as memory allows, in blocks."""

    def __init__(
        self, point: Point, product: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator
    ) -> None:
        self.point, self.product = point, product
        dtype = point.at.chunks.dtype
        start = free_coordinates(point, rng.standard_normal(size_of(point)).astype(dtype))
        self.norm = float(np.linalg.norm(start))
        self.previous, self.current = np.zeros_like(start), start / dtype.type(self.norm)
        self.kept: list[np.ndarray] = []
        self.most = cache_bytes() // (calibration.LANCZOS_BLOCK * start.nbytes)
        self.diagonal, self.beside = [], []

    def extend(self, steps: int, deadline: float | None) -> None:
        """So many further steps, fewer at the deadline or when there are no further directions."""
        for _ in range(steps):
            if passed(deadline) or self.exhausted():
                return
            self._keep()
            image = self.product(self.current)
            if self.beside:
                image -= self.beside[-1] * self.previous
            alpha = image @ self.current
            image -= alpha * self.current
            for block in self.kept:
                image -= (block @ image) @ block
            # Rounding leaves a trace of the gauge, which would grow into a false eigenvalue 0.
            image = free_coordinates(self.point, image)
            beta = np.linalg.norm(image)
            self.previous, self.current = self.current, image / max(beta, np.finfo(image.dtype).tiny)
            self.diagonal.append(alpha)
            self.beside.append(beta)

    def _keep(self) -> None:
        """Write the current vector into the last block, whose other rows are zero until they are needed."""
        block, place = divmod(len(self.diagonal), calibration.LANCZOS_BLOCK)
        if block == len(self.kept) < self.most:
            self.kept.append(np.zeros((calibration.LANCZOS_BLOCK, self.current.size), self.current.dtype))
        if block < len(self.kept):
            self.kept[block][place] = self.current

    def exhausted(self) -> bool:
        """Whether the last step left nothing but rounding."""
        if not self.beside:
            return False
        rounding = np.finfo(self.current.dtype).eps * max(self.diagonal)
        return not self.beside[-1] > rounding  # also where it is not a number

    def resolved(self) -> bool:
        """Whether all is finite: curvature that is zero to rounding makes the coordinates overflow float32."""
        return bool(np.isfinite(self.diagonal).all() and np.isfinite(self.beside).all())

    def tridiagonal(self, delta: float) -> Tridiagonal:
        """The Ritz values so far; an off-diagonal entry of rounding counts as that."""
        diagonal, beside = np.array(self.diagonal, np.float64), np.array(self.beside, np.float64)
        values = np.asarray(scipy.linalg.eigvalsh_tridiagonal(diagonal, beside[:-1]))
        least = max(float(np.finfo(self.current.dtype).eps) * values[-1], np.finfo(float).tiny)
        chance = np.log(self.norm / (delta * np.sqrt(np.pi / 2)))
        return Tridiagonal(values, np.maximum(beside, least), float(chance))


def lanczos_spectrum(
    point: Point,
    seed: int,
    delta: float,
    more: bool,
    on_step: Callable[..., None] | None,
    deadline: float | None = None,
    hurried: bool = False,
    share: float = calibration.ENOUGH_SHARE,
    spared: float = 0.0,
    good: Callable[[Spectrum], bool] | None = None,
) -> Spectrum | None:
    """Smallest eigenvalue of S - `spared` A by Lanczos from a random start, until the `share` of it is guaranteed or what is is `good`.

    Where that matrix turns out not to be positive, S itself is looked at. None where a guarantee would take many steps and there are
    `more` examples, with which it takes fewer. A `hurried` run gives up where it would take many steps; nothing is guaranteed then.
    """
    most = 2 * min(calibration.MATRIX_MOST, size_of(point))  # with fewer products the matrix is written out
    product = partial(score_product, point, spared=spared)
    run = Lanczos(point, product, np.random.default_rng([seed, 0x1A2C]))
    start = before = -np.log(run.norm / delta)
    block = calibration.LANCZOS_BLOCK
    while True:
        run.extend(block, deadline)
        steps = len(run.diagonal)
        if not run.resolved() or passed(deadline):
            return Spectrum(0.0, 0.0, steps)
        found = run.tridiagonal(delta)
        smallest, lower, excess = float(found.values[0]), found.lower(), found.excess(0.0)
        if on_step is not None:
            on_step(products=steps, eigenvalue=smallest, guaranteed=lower)
        if spared and smallest <= 0:
            return lanczos_spectrum(point, seed, delta / 2, more, on_step, deadline, hurried, share, good=good)  # fmt: skip
        now = Spectrum(max(smallest, 0.0), lower, steps, spared)
        settled = lower >= share * smallest or steps >= most or run.exhausted()
        if settled or (good is not None and lower > 0 and good(now)):
            return now
        needed, before = steps_needed(steps, excess, before, start, block), excess
        block = int(np.clip(needed - steps, calibration.DRAWS, calibration.LANCZOS_BLOCK))
        if steps < calibration.MANY_PRODUCTS or needed <= calibration.INNER_MOST:
            continue
        if more:
            return None
        if hurried or needed >= most:
            return now._replace(lower=0.0) if hurried else now


def steps_needed(
    steps: int, excess: float, before: float, start: float, block: int = calibration.LANCZOS_BLOCK
) -> float:
    """Steps until something is guaranteed, from the excess now, a block of steps earlier and at the start.

    What a step wins is the larger of the average of all and of the last ones: a further small Ritz value costs some of what was won.
    """
    if excess > 0:
        return steps
    won = max((excess - before) / block, (excess - start) / steps)
    return steps - excess / won if won > 0 else np.inf


def spared_share(point: Point, seed: int, deadline: float | None = None) -> float:
    """A tau for S - tau A: a tenth of the smallest eigenvalue of S that a first look shows, for A is about one; 0 where there is none."""
    run = Lanczos(point, partial(score_product, point), np.random.default_rng([seed, 0x1A2E]))
    run.extend(calibration.TRIES, deadline)
    if not (run.diagonal and run.resolved()):
        return 0.0
    return max(0.0, calibration.DIGIT * float(run.tridiagonal(1.0).values[0]))


def largest_undone(point: Point, seed: int, delta: float, deadline: float | None = None) -> float:
    """What the largest eigenvalue of A - S is at most, within a factor of about two; infinite if that is not known."""
    kernel = kernels(point)

    def product(t: np.ndarray) -> np.ndarray:
        return output_product(point, kernel, t) - score_product(point, t)

    run = Lanczos(point, product, np.random.default_rng([seed, 0x1A2D]))
    while True:
        run.extend(calibration.DRAWS, deadline)
        if not run.resolved() or passed(deadline):
            return np.inf
        found = run.tridiagonal(delta)
        upper = found.upper()
        if upper <= found.values[-1] / calibration.HALVED or run.exhausted():
            return upper


def dense_spectrum(
    point: Point, on_step: Callable[..., None] | None, deadline: float | None = None
) -> Spectrum:
    """Smallest eigenvalue of S itself, column by column; gauge directions, which count for nothing, have one."""
    size = size_of(point)
    matrix = np.empty((size, size))
    for place, unit in enumerate(np.eye(size)):
        if passed(deadline):
            return Spectrum(0.0, 0.0, place)
        matrix[place] = score_product(point, unit) + unit - free_coordinates(point, unit)
        if on_step is not None and place % calibration.LANCZOS_BLOCK == 0:
            on_step(products=place + 1, of=size)
    if not np.isfinite(matrix).all():
        return Spectrum(0.0, 0.0, size)
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    smallest, rounding = float(values[0]), calibration.RIDGE / calibration.DIGIT * float(values[-1])
    return Spectrum(max(smallest, 0.0), max(smallest - rounding, 0.0), size)
