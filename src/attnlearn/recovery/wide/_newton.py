"""Gauss-Newton on a student: all factors move, and the outputs and the bias are eliminated.

`solve.refinement` eliminates whole W: (m d + 1) columns of every row. In hundreds of directions that is most of its work, though W has no
more rank than Theta there. Here W_i = v_i o_i keeps its factors: v moves with the scores, what is eliminated has m r + 1 columns, and
because a direction changes the outputs by (change of the columns) o, products with the Gauss-Newton matrix have m r columns.

| operations, d = o = 384, 12 heads of rank 32, 16 tokens | whole W | factors |
|---|---|---|
| product, a row | 8.5e6 | 2.7e6 |
| elimination, a row | 4.2e7 | 6e5 |
| rows wanted | 21,000 | 13,000 |

Steps are Levenberg-Marquardt's, solved by preconditioned conjugate gradients (`_blocks`). On the antibody encoder's layer 1 (127 directions,
8 heads of rank 16) they led from 0.04 to 9e-6 in float32, in 44 CPU s, where eight steps of `refine` had left 1.6e-3. Then float64,
in which white tokens are less rounded, led to rounding (1e-6) in one step of 4 s; `refine` took 29 s for that step.

What can fail: a head that the student lost; a rank below that of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from attnlearn.engine._threads import in_order
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery.wide._blocks import Blocks
from attnlearn.recovery.wide._student import Student
from attnlearn.recovery.wide._tangent import Factors, Tangent, columns_of, residual_of
from attnlearn.scores import Visible
from attnlearn.solve._calibration import FLOOR, RIDGE, in_precision
from attnlearn.solve._chunks import Chunk, added, on_threads
from attnlearn.solve._deadline import passed
from attnlearn.solve._regress import inverse_factor
from attnlearn.solve.refinement import damping_factor


class Eliminated(NamedTuple):
    """The best outputs and bias for given scores and values: the student, its squared error, and L^-1 of P^T P."""

    student: Student
    cost: float
    factor: np.ndarray


class Limits(NamedTuple):
    """When a descent ends: steps, the relative residual that is enough, the most products of a step, and a time."""

    steps: int
    enough: float = 0.0
    inner: int = calibration.MANY_PRODUCTS // 2
    deadline: float | None = None


class Reached(NamedTuple):
    """Where a descent ended, its relative residual, and that after every step."""

    student: Student
    residual: float
    residuals: tuple[float, ...]


def newton(
    student: Student,
    chunks: Sequence[Chunk],
    causal: bool | Visible,
    limits: Limits,
    on_step: Callable[[float], None] | None = None,
) -> Reached:
    """The optimum near a student, as far as the limits allow and the precision of the chunks shows."""
    total = sum(float(np.vdot(chunk.y, chunk.y)) for chunk in chunks)
    residuals: list[float] = []
    with on_threads():
        now, damping = eliminate(student, chunks, causal), calibration.ROUGH
        residual = float(np.sqrt(now.cost / total))
        enough = max(limits.enough, FLOOR * float(np.finfo(student.values.dtype).eps))
        while len(residuals) < limits.steps and residual > enough and not passed(limits.deadline):
            damped = damping
            moved, damping, promised = _step(now, chunks, causal, damping, limits)
            if moved is None:
                break
            stationary = promised <= calibration.ROUGH * now.cost and damped <= calibration.ROUGH
            now, residual = moved, float(np.sqrt(moved.cost / total))
            residuals.append(residual)
            if on_step is not None:
                on_step(residual)
            if stationary or stagnates(residuals):
                break
    return Reached(now.student, residual, tuple(residuals))


def stagnates(residuals: Sequence[float]) -> bool:
    """Whether the last steps together did not halve the residual.

    >>> stagnates([0.5**step for step in range(20)]), stagnates([0.95**step for step in range(20)]), stagnates([1.0, 1.0])
    (False, True, False)
    """
    steps = calibration.SHORT_STEPS
    return len(residuals) > steps and residuals[-1] > calibration.HALVED * residuals[-1 - steps]


def eliminate(student: Student, chunks: Sequence[Chunk], causal: bool | Visible) -> Eliminated:
    """The outputs and the bias that fit best."""

    def part(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
        columns = columns_of(student, chunk, causal)
        return columns.T @ columns, columns.T @ chunk.y.reshape(len(columns), -1)

    def left(chunk: Chunk) -> float:
        rest = residual_of(best, chunk, columns_of(best, chunk, causal))
        return float(np.vdot(rest, rest))

    dtype = chunks[0].x.dtype
    matrix, moment = added(in_order(part, chunks))
    factor = inverse_factor(matrix, in_precision(RIDGE, dtype))
    linear = (factor.T @ (factor @ np.asarray(moment, np.float64))).astype(dtype)
    heads, _, rank = student.values.shape
    best = student._replace(outputs=linear[:-1].reshape(heads, rank, -1), bias=linear[-1])
    return Eliminated(best, sum(in_order(left, chunks)), factor)


def _step(
    now: Eliminated, chunks: Sequence[Chunk], causal: bool | Visible, damping: float, limits: Limits
) -> tuple[Eliminated | None, float, float]:
    """The student after a step that lowers its error (None: no step does), the next damping, and the promised decrease."""
    at = Tangent.at(now.student, now.factor, chunks, causal)
    slope, by, promised = at.slope(), Blocks.of(at), 0.0
    while damping <= 1 / calibration.ROUGH:
        step, promised = solve(at, by, slope, damping, limits)
        new = eliminate(step.added_to(now.student), chunks, causal)
        if new.cost < now.cost:
            return new, damping * damping_factor((now.cost - new.cost) / promised), promised
        if passed(limits.deadline) or promised <= calibration.NEGLIGIBLE**2 * now.cost:
            break
        damping /= calibration.DIGIT
    return None, damping, promised


def solve(at: Tangent, by: Blocks, slope: Factors, damping: float, limits: Limits) -> tuple[Factors, float]:
    """The damped step by conjugate gradients, and by how much it should lower the squared error."""
    right = -slope.flat()
    t, rest = np.zeros_like(right), right.copy()
    near = by.solve(slope.shaped(rest)).flat()
    towards, square, inner = near, float(rest @ near), 0
    limit = calibration.DIGIT**2 * square
    while square > limit and inner < limits.inner and not passed(limits.deadline):
        direction = slope.shaped(towards)
        product = at.product(direction).flat() + damping * by.times(direction).flat()
        curvature = float(towards @ product)
        if not curvature > 0:  # by rounding
            break
        length = square / curvature
        t += length * towards
        rest -= length * product
        near = by.solve(slope.shaped(rest)).flat()
        before, square, inner = square, float(rest @ near), inner + 1
        towards = near + (square / before) * towards
    step = slope.shaped(t)
    damped = damping * float(t @ by.times(step).flat())
    # (H + damping M) t = right - rest, and the squares fall by 2 right^T t - t^T H t.
    return step, float((right + rest) @ t) + damped
