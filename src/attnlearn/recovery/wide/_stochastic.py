"""The stochastic descent: Adam on a student of more heads than the layer has, for tokens that vary in many directions.

In few directions Gauss-Newton runs from random scores into the truth. In hundreds one of its steps costs as much as hundreds of
gradients, and it needs a start nearby. Small batches find one: every head of the layer then has one in the student that is
close to it, and the others fall silent or double one (`_prune`). The rate falls along a cosine, so the last steps average the batches.

| recorded layers (16 heads, 2,000 steps) | error | least cosine of a true head's scores with the nearest |
|---|---|---|
| antibody encoder, layer 1, 127 directions, 8 heads of rank 16; student of rank 8 / 16 / 32 | 0.23 / 0.031 / 0.031 | 0.81 / 0.89 / 0.87 |
| the same, layer 3, student of rank 16 | 0.010 | 0.9996 |

Cost: per step about 24 m d r operations a row. What can fail: a rank below that of the layer; too few steps; examples that the student
learns by heart, which the select side shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.engine._threads import in_order
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.wide._student import Student, seen, slope
from attnlearn.scores import Visible
from attnlearn.solve._calibration import CHUNK_ROWS, PIECE, RIDGE, in_precision
from attnlearn.solve._chunks import Chunk, added, cut, on_threads
from attnlearn.solve._drop import Normal


class Source:
    """White tokens and outputs of mean zero and spread one, in float32: as many fit examples as memory allows."""

    def __init__(self, problem: Problem, signals: Signals, visible: Visible | None = None) -> None:
        self.problem, examples = problem, problem.examples
        one = 4 * examples.tokens * (signals.directions + examples.out_dim)
        side = problem.fit_side(max(calibration.SAMPLE, calibration.CACHE_BYTES // one))
        real = side.y.reshape(-1, examples.out_dim) if side.mask is None else side.y[side.mask]
        self.mean = real.mean(axis=0, dtype=np.float64)
        self.spread = float(np.sqrt(real.var(axis=0, dtype=np.float64).mean()))
        self.spread = max(self.spread, float(np.finfo(np.float32).tiny))
        self.white, self.causal = signals.white, signals.causal if visible is None else visible
        self.keep = None if side.mask is None else side.mask.astype(np.float32)
        self.x: np.ndarray = np.empty((*side.x.shape[:2], signals.directions), np.float32)
        self.y: np.ndarray = np.empty(side.y.shape, np.float32)
        for start in range(0, side.num, PIECE):
            part = slice(start, start + PIECE)
            self.x[part] = signals.white.tokens(side.x[part])
            self.y[part] = (side.y[part] - self.mean) / self.spread
        if self.keep is not None:
            self.x *= self.keep[..., None]
            self.y *= self.keep[..., None]

    def batch(self, rows: int, rng: np.random.Generator) -> list[Chunk]:
        """About so many rows of random sequences, in chunks that may run side by side."""
        wanted = max(calibration.SPARE, rows // self.x.shape[1])
        drawn = rng.integers(len(self.x), size=2 * -(-wanted // 2))
        return [self.chunk(half) for half in np.split(drawn, 2)]

    def chunk(self, chosen: np.ndarray) -> Chunk:
        """Some sequences; tokens and outputs are zero where padded."""
        return Chunk(self.x[chosen], self.y[chosen], None if self.keep is None else self.keep[chosen], chosen)

    def pieces(self, number: int) -> Iterator[Chunk]:
        """The first sequences in chunks."""
        number = min(number, len(self.x))
        few = max(1, CHUNK_ROWS // self.x.shape[1])
        return (self.chunk(np.arange(start, min(start + few, number))) for start in range(0, number, few))

    def in_double(self, number: int) -> list[Chunk]:
        """The first sequences in chunks of float64: what float32 rounds off white tokens is more than the recorded ones lack."""
        side = self.problem.fit_side(number)
        y = (np.asarray(side.y, np.float64) - self.mean) / self.spread
        return list(cut(self.white.tokens(side.x, np.float64), y, side.mask))

    def layer(self, student: Student) -> AttentionLayer:
        """The student as a layer on the tokens themselves."""
        inside, white = student.layer(self.mean, self.spread, self.causal), self.white
        w = white.inverse.T @ inside.w
        b = inside.output_bias - white.mean @ w.sum(axis=0)
        return AttentionLayer.from_scores(white.outside(inside.form), w, b, causal=self.causal)


class Course(NamedTuple):
    """How a descent goes: steps, the first rate, and rows of a batch."""

    steps: int
    rate: float
    rows: int

    @classmethod
    def through(cls, directions: int, columns: int) -> Course:
        """More steps at a smaller rate for more directions, or more columns of all heads: their product stays.

        >>> Course.through(128, 16 * 32)
        Course(steps=2000, rate=0.005, rows=1024)
        """
        wide = calibration.WIDTHS[1] * calibration.STUDENT_DIRECTIONS / calibration.WIDE_RANK
        more = np.sqrt(max(directions / calibration.STUDENT_DIRECTIONS, columns / wide))
        rows = max(CHUNK_ROWS, calibration.SPARE * directions)
        return cls(round(calibration.STUDENT_STEPS * more), float(calibration.STUDENT_RATE / more), rows)

    def rate_at(self, step: int) -> float:
        """The rate of one step: a short rise, then a cosine.

        >>> course = Course(1000, 0.01, 512)
        >>> course.rate_at(0) < course.rate_at(50) > course.rate_at(999)
        True
        """
        rise = min(1.0, (step + 1) / (self.steps * calibration.ALIKE + 1))
        return self.rate * rise * 0.5 * (1 + float(np.cos(np.pi * step / self.steps)))


class Adam:
    """Averages of the slope and of its square, for every array."""

    def __init__(self, arrays: tuple[np.ndarray, ...], state: tuple[list, list] | None = None) -> None:
        zeros = [np.zeros_like(array) for array in arrays], [np.zeros_like(array) for array in arrays]
        self.mean, self.square = zeros if state is None else state

    def step(
        self, arrays: tuple[np.ndarray, ...], slopes: tuple[np.ndarray, ...], rate: float, number: int
    ) -> None:
        """Move the arrays, in place; `number` counts the steps from one."""
        first, second = calibration.ADAM_MEMORY
        unbiased = np.float32(rate * np.sqrt(1 - second**number) / (1 - first**number))
        for array, change, mean, square in zip(arrays, slopes, self.mean, self.square, strict=True):
            mean += np.float32(1 - first) * (change - mean)
            square += np.float32(1 - second) * (change * change - square)
            array -= unbiased * mean / (np.sqrt(square) + np.finfo(np.float32).tiny ** 0.5)


class Descended(NamedTuple):
    """The student at the end, and its relative residual over the course."""

    student: Student
    residuals: tuple[float, ...]


def descend(source: Source, student: Student, course: Course, tools: Tools, name: str) -> Descended:
    """The student after its course, or where it is when time is up. It can be resumed under `name`."""
    saved = tools.resume_inner(name)
    arrays = student.arrays if saved is None else tuple(saved["arrays"])
    adam = Adam(arrays, None if saved is None else (list(saved["mean"]), list(saved["square"])))
    residuals = [] if saved is None else list(saved["residuals"])
    often, squares, begin = max(1, course.steps // PIECE), 0.0, 0 if saved is None else int(saved["step"])
    for step in range(begin, course.steps):
        batch = source.batch(course.rows, tools.rng(f"{name} {step}"))
        slopes, error = _mean_slope(student.like(arrays), batch, source.causal)
        adam.step(arrays, slopes, course.rate_at(step), step + 1)
        squares += error
        if (step + 1) % often == 0:
            residuals.append(float(np.sqrt(squares / often)))
            squares = 0.0
            tools.progress.update(heads=len(student.values), step=step + 1, residual=residuals[-1])
            now = {"arrays": arrays, "mean": adam.mean, "square": adam.square, "residuals": residuals}
            tools.checkpoint_inner(name, {"step": step + 1, **now})
        if tools.out_of_time:
            break
    return Descended(student.like(arrays), tuple(residuals))


def _mean_slope(
    student: Student, batch: list[Chunk], causal: bool | Visible
) -> tuple[tuple[np.ndarray, ...], float]:
    """The slope of the mean squared error on a batch, and the error."""
    with on_threads():
        *slopes, squares = added(in_order(lambda chunk: slope(student, chunk, causal), batch))
    real = sum(chunk.x[..., 0].size if chunk.keep is None else float(chunk.keep.sum()) for chunk in batch)
    return tuple(np.float32(2 / real) * part for part in slopes), float(squares) / (real * student.bias.size)


def normal_equations(source: Source, student: Student) -> tuple[Normal, float]:
    """The equations of the outputs and the bias for given scores and values, and the squares of y that they are to explain."""
    heads, _, rank = student.values.shape
    width = heads * rank + 1
    rows = int(calibration.EQUATIONS_PER_UNKNOWN) * width
    number = min(len(source.x), max(calibration.SAMPLE, rows // source.x.shape[1]))

    def part(chunk: Chunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        columns = seen(student, chunk, source.causal).columns
        ones = np.ones((len(columns), 1), np.float32) if chunk.keep is None else chunk.keep.reshape(-1, 1)
        whole, y = np.concatenate([columns, ones], axis=1), chunk.y.reshape(len(columns), -1)
        return whole.T @ whole, whole.T @ y, np.array(np.vdot(y, y), np.float64)

    with on_threads():
        matrix, moment, total = added(in_order(part, source.pieces(number)))
    ridge = in_precision(RIDGE, np.float32)
    return Normal(matrix.astype(np.float64), moment.astype(np.float64), rank, ridge), float(total)
