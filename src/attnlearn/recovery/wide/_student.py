"""A student: a layer in factors, and the slope of its squared error on some sequences.

Theta_i = a_i b_i^T, or scores that turn with positions, and W_i = v_i o_i, of one rank r each. In many directions that is what makes a step cheap: per row about
8 m d r operations forward and twice as many back, where whole matrices would take m d^2. Tokens are white and outputs have spread
one, so one step size suits all factors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnlearn._layer import AttentionLayer
from attnlearn.scores import Bilinear, Scores, Visible
from attnlearn.scores._products import pair, project, project_back, turn
from attnlearn.solve._attend import patterns
from attnlearn.solve._chunks import Chunk
from attnlearn.solve._linearize import through_softmax


class Student(NamedTuple):
    """Scores in factors, values (m, d, r), outputs (m, r, o) and a bias (o,). Also the shape of its slope."""

    scores: Scores
    values: Float[np.ndarray, "m d r"]
    outputs: Float[np.ndarray, "m r o"]
    bias: Float[np.ndarray, "o"]

    @classmethod
    def random(
        cls, heads: int, rank: int, dim: int, out_dim: int, score: float, rng: np.random.Generator
    ) -> Student:
        """Small random scores of standard deviation `score` on white tokens, and small outputs."""

        size = np.float32(np.sqrt(score / np.sqrt(rank) / dim))
        a, b = (size * rng.standard_normal((heads, dim, rank), dtype=np.float32) for _ in range(2))
        return cls.around(Bilinear(a, b, np.zeros((heads, dim), np.float32)), rank, out_dim, rng)

    @classmethod
    def around(cls, scores: Scores, rank: int, out_dim: int, rng: np.random.Generator) -> Student:
        """These scores in float32, and small random outputs of values of that rank."""
        heads, dim = scores.heads, scores.dim
        values = rng.standard_normal((heads, dim, rank), dtype=np.float32) / np.float32(np.sqrt(dim))
        outputs = rng.standard_normal((heads, rank, out_dim), dtype=np.float32)
        outputs /= np.float32(np.sqrt(heads * rank) / OUTPUT_SIZE)
        return cls(scores.astype(np.float32), values, outputs, np.zeros(out_dim, np.float32))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Its numbers, in the order of `like`."""
        return (self.scores.flat(), self.values, self.outputs, self.bias)

    def like(self, arrays: tuple[np.ndarray, ...]) -> Student:
        """The student of these arrays, which it shares."""
        return Student(self.scores.shaped(arrays[0]), *arrays[1:])

    def layer(self, mean: Float[np.ndarray, "o"], spread: float, causal: bool | Visible) -> AttentionLayer:
        """The layer on white tokens whose outputs are `mean` plus `spread` times those of the student."""
        values, outputs = (part.astype(np.float64) for part in (self.values, self.outputs))
        form, b = self.scores.astype(np.float64).canonical(), mean + spread * self.bias
        return AttentionLayer.from_scores(form, spread * values @ outputs, b, causal=causal)

    def astype(self, dtype: Any) -> Student:
        """The student in another precision."""
        rest = (np.asarray(part, dtype) for part in (self.values, self.outputs, self.bias))
        return Student(self.scores.astype(dtype), *rest)

    def of_heads(self, kept: Int[np.ndarray, "h"]) -> Student:
        """The student with some of its heads, whose scores are plain factors."""
        assert isinstance(self.scores, Bilinear), "heads are chosen among plain factors"
        scores = Bilinear(*(part[kept] for part in self.scores))
        return Student(scores, self.values[kept], self.outputs[kept], self.bias)

    def of_rank(self, rank: int) -> Student:
        """The nearest student of a rank that is at most its own, with balanced factors."""
        u, values, vt = self._values()
        root = np.sqrt(values[:, :rank])
        found = (u[:, :, :rank] * root[:, None], root[:, :, None] * vt[:, :rank])
        return Student(self.scores.of_rank(rank), *found, self.bias).astype(self.values.dtype)

    @property
    def spectra(self) -> tuple[Float[np.ndarray, "m r"], Float[np.ndarray, "m r"]]:
        """Singular values of every Theta and W."""
        theta = np.linalg.svd(self.scores.at(0).theta, compute_uv=False)
        return theta[:, : self.values.shape[2]], self._values()[1]

    def _values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The singular value decomposition of every W; nothing of size d times o is formed."""
        outer, inner = np.linalg.qr(self.values.astype(np.float64))
        u, values, vt = np.linalg.svd(inner @ self.outputs, full_matrices=False)
        return outer @ u, values, vt


OUTPUT_SIZE = 0.3
"""Size of the first outputs, that of the true ones being 1."""


class Seen(NamedTuple):
    """What a student does with one chunk: patterns, what the scores keep, values (n, k, m, r), and the columns that `outputs` multiplies."""

    alpha: np.ndarray
    kept: object
    values: np.ndarray
    columns: Float[np.ndarray, "rows m*r"]


def seen(student: Student, chunk: Chunk, causal: bool | Visible) -> Seen:
    """Forward on one chunk, up to the outputs."""
    n, k, _ = chunk.x.shape
    alpha, kept = patterns(student.scores, chunk.x, turn(chunk.x), chunk.keep, causal)
    values = project(chunk.x, student.values)
    mixed = np.empty_like(values)
    by_head = alpha.transpose(0, 2, 1, 3)
    np.matmul(by_head, values.transpose(0, 2, 1, 3), out=mixed.transpose(0, 2, 1, 3))
    return Seen(alpha, kept, values, mixed.reshape(n * k, -1))


def residual(student: Student, chunk: Chunk, columns: np.ndarray) -> Float[np.ndarray, "rows o"]:
    """What the student puts out less what it should; zero where a token is padded."""
    rest = columns @ student.outputs.reshape(columns.shape[1], -1)
    rest += student.bias if chunk.keep is None else chunk.keep.reshape(-1, 1) * student.bias
    rest -= chunk.y.reshape(rest.shape)
    return rest


def slope(student: Student, chunk: Chunk, causal: bool | Visible) -> tuple[np.ndarray, ...]:
    """Half the slope of the summed squared error in every array, and the sum itself."""
    alpha, kept, values, columns = seen(student, chunk, causal)
    rest = residual(student, chunk, columns)
    back = (rest @ student.outputs.reshape(columns.shape[1], -1).T).reshape(values.shape)
    to_values, by_head = np.empty_like(values), alpha.transpose(0, 2, 3, 1)
    np.matmul(by_head, back.transpose(0, 2, 1, 3), out=to_values.transpose(0, 2, 1, 3))
    scores = student.scores.vjp(through_softmax(pair(back, values), alpha), kept)  # pyright: ignore[reportArgumentType]
    outputs = (columns.T @ rest).reshape(student.outputs.shape)
    found = Student(scores, project_back(chunk.x, to_values), outputs, rest.sum(axis=0))
    return (*found.arrays, np.array(np.vdot(rest, rest), np.float64))
