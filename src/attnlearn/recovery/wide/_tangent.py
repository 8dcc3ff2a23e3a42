"""The derivative of a student in its scores and values, chunk by chunk, with outputs and bias eliminated.

With P = [alpha_1 X v_1, ..., 1] and F = P [o; b], a direction of scores and values changes P by dP and, after the best outputs follow, F by
(I - P P^+) dP o. Its products with itself need o only as o o^T: what passes through them has m r columns, whatever the outputs are.

Cost: per row about 24 m d r operations and three times 2 (m r)^2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn.engine._threads import in_order
from attnlearn.recovery.wide._student import Seen, Student, seen
from attnlearn.scores import Scores, Visible
from attnlearn.scores._products import pair, project, project_back
from attnlearn.solve._chunks import Chunk, added
from attnlearn.solve._linearize import through_softmax


class Factors(NamedTuple):
    """What moves: scores and values. Also a step, and a slope."""

    scores: Scores
    values: Float[np.ndarray, "m d r"]

    def flat(self) -> np.ndarray:
        """All numbers as one vector."""
        return np.concatenate([self.scores.flat(), self.values.reshape(-1)])

    def shaped(self, vector: np.ndarray) -> Factors:
        """A vector of `flat` in the shape of these factors."""
        size = vector.size - self.values.size
        return Factors(self.scores.shaped(vector[:size]), vector[size:].reshape(self.values.shape))

    def added_to(self, student: Student) -> Student:
        """The student after this step; its outputs are those from before."""
        return student._replace(scores=student.scores.moved(self.scores), values=student.values + self.values)

    @classmethod
    def total(cls, parts: Iterable[Factors]) -> Factors:
        """The sum, in the arrays of the first."""
        first, *rest = parts
        return first.shaped(added(part.flat() for part in (first, *rest)))


class Local(NamedTuple):
    """One chunk at a student: what it does there, the columns P, and what it leaves."""

    chunk: Chunk
    seen: Seen
    columns: Float[np.ndarray, "rows p"]
    rest: Float[np.ndarray, "rows o"]


def columns_of(student: Student, chunk: Chunk, causal: bool | Visible) -> Float[np.ndarray, "rows p"]:
    """The columns that outputs and bias multiply."""
    return with_bias(seen(student, chunk, causal).columns, chunk)


def with_bias(columns: np.ndarray, chunk: Chunk) -> Float[np.ndarray, "rows p"]:
    """The columns and that of the bias, which is zero where padded."""
    ones = np.ones((len(columns), 1), columns.dtype)
    if chunk.keep is not None:
        ones *= chunk.keep.reshape(-1, 1)
    return np.concatenate([columns, ones], axis=1)


def residual_of(student: Student, chunk: Chunk, columns: np.ndarray) -> Float[np.ndarray, "rows o"]:
    """What the student puts out less what it should."""
    linear = np.concatenate([student.outputs.reshape(-1, student.bias.size), student.bias[None]])
    return columns @ linear - chunk.y.reshape(len(columns), -1)


class Tangent(NamedTuple):
    """A student at its best outputs, L^-1 of P^T P, and every chunk there."""

    student: Student
    factor: np.ndarray
    outputs: Float[np.ndarray, "p o"]
    met: Float[np.ndarray, "p p"]
    local: list[Local]

    @classmethod
    def at(
        cls, student: Student, factor: np.ndarray, chunks: Sequence[Chunk], causal: bool | Visible
    ) -> Tangent:
        """Prepare derivatives."""

        def local(chunk: Chunk) -> Local:
            found = seen(student, chunk, causal)
            columns = with_bias(found.columns, chunk)
            return Local(chunk, found, columns, residual_of(student, chunk, columns))

        outputs = student.outputs.reshape(-1, student.bias.size)
        factor = factor.astype(outputs.dtype)
        return cls(student, factor, outputs, outputs @ outputs.T, list(in_order(local, chunks)))

    def slope(self) -> Factors:
        """Half the slope of the squared error."""
        return Factors.total(in_order(lambda one: self._pulled(one, one.rest @ self.outputs.T), self.local))

    def product(self, direction: Factors) -> Factors:
        """The Gauss-Newton matrix times a direction."""
        moved = list(in_order(lambda one: self._changed(one, direction), self.local))
        both = list(zip(self.local, moved, strict=True))
        follow = self.factor.T @ (
            self.factor @ added(in_order(lambda pair: pair[0].columns.T @ pair[1], both))
        )
        return Factors.total(
            in_order(
                lambda pair: self._pulled(pair[0], (pair[1] - pair[0].columns @ follow) @ self.met), both
            )
        )

    def _changed(self, one: Local, direction: Factors) -> Float[np.ndarray, "rows p"]:
        """The change of the columns along a direction."""
        alpha, values = one.seen.alpha, one.seen.values
        scores = self.student.scores.jvp(direction.scores, one.seen.kept)
        own = project(one.chunk.x, direction.values)
        found = through_softmax(scores, alpha).swapaxes(1, 2) @ values.swapaxes(1, 2)
        found += alpha.swapaxes(1, 2) @ own.swapaxes(1, 2)
        return np.ascontiguousarray(found.swapaxes(1, 2)).reshape(len(one.columns), -1)

    def _pulled(self, one: Local, back: Float[np.ndarray, "rows p"]) -> Factors:
        """The adjoint of `_changed`."""
        to_scores, to_values = signals(one, back)
        scores = self.student.scores.vjp(to_scores, one.seen.kept)
        return Factors(scores, project_back(one.chunk.x, to_values))


def signals(one: Local, back: Float[np.ndarray, "rows p"]) -> tuple[np.ndarray, np.ndarray]:
    """What arrives at scores (n, query, m, key) and values (n, key, m, r) from what arrives at the columns."""
    alpha, values = one.seen.alpha, one.seen.values
    back, to_values = back.reshape(values.shape), np.empty_like(values)
    np.matmul(alpha.transpose(0, 2, 3, 1), back.swapaxes(1, 2), out=to_values.swapaxes(1, 2))
    return through_softmax(pair(back, values), alpha), to_values
