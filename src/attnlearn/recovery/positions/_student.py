"""The wide fit of rotary scores, and of all scores in many directions: a stochastic descent of a student with positions.

In hundreds of directions a Gauss-Newton step from random scores costs as much as hundreds of gradients, as for plain scores
(`recovery/wide`). Of rotary scores it finds worse optima in few directions as well:

| recorded attention of a random Llama, d = 64, four heads of width 16, 8,000 sequences of 16 tokens | left | CPU s |
|---|---|---|
| 24 Gauss-Newton steps on six heads | 0.18 | 20 |
| 1,414 steps of Adam on eight heads | 0.017 | 8 |

The student has the width of the family in scores and twice that in values. Which of its heads are needed shows in the cost of
dropping them, here in the few directions of their values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.positions._kinds import Family
from attnlearn.recovery.positions._starts import random_scores
from attnlearn.recovery.wide import Course, Source, Student, descend, normal_equations
from attnlearn.scores import Rotation
from attnlearn.solve._drop import cheapest_drops


def student_heads(wanted: int | None) -> int:
    """Heads of a student: twice those that are known, or those of most layers and more.

    >>> student_heads(None), student_heads(9), student_heads(2)
    (16, 18, 8)
    """
    return calibration.WIDTHS[1] if wanted is None else max(calibration.WIDTHS[0], 2 * wanted)


class Descent:
    """White examples of one problem, and the student on them."""

    def __init__(self, problem: Problem, signals: Signals, family: Family, tools: Tools) -> None:
        self.source = Source(problem, signals, family.visible)
        self.kind, self.tools, self.heads = family.kinds[0], tools, student_heads(problem.num_heads)
        usual = min(calibration.STUDENT_RANK, -(-signals.directions // calibration.WIDE_RANK))
        self.rank = min(2 * self.kind.width, signals.directions) if isinstance(self.kind, Rotation) else usual
        self.directions, self.out = signals.directions, problem.examples.out_dim

    def run(self, name: str) -> AttentionLayer:
        """The layer that a student ends as."""
        rng = self.tools.rng(f"{name} student")
        scores = random_scores(self.kind, self.heads, self.directions, rng)
        start = Student.around(scores, self.rank, self.out, rng)
        course = Course.through(self.directions, self.heads * self.rank)
        return self.source.layer(descend(self.source, start, course, self.tools, f"{name} student").student)

    def drops(self, layer: AttentionLayer) -> list[tuple[np.ndarray, float]]:
        """The heads that remain after each drop, the cheapest first, and what it costs."""
        white: Any = self.source.white
        u, sizes, v = np.linalg.svd(white.basis.T @ layer.w, full_matrices=False)
        values, outputs = u[..., : self.rank], (sizes[..., None] * v)[:, : self.rank]
        bias = np.zeros(self.out)
        student = Student(white.inside(layer.form), values, outputs, bias)
        student = student._replace(scores=student.scores.astype(np.float32))
        student = student.like(tuple(array.astype(np.float32) for array in student.arrays))
        return list(cheapest_drops(*normal_equations(self.source, student)))
