"""Small students, what they put out on Gaussian tokens, and their derivatives."""

from __future__ import annotations

import numpy as np

from attnlearn.recovery.wide._newton import eliminate
from attnlearn.recovery.wide._student import Student
from attnlearn.recovery.wide._tangent import Tangent, columns_of, residual_of
from attnlearn.solve._chunks import Chunk

HEADS, RANK, DIM, OUT, TOKENS = 3, 3, 9, 8, 7


def double(student: Student) -> Student:
    return student.astype(float)


def layer(rng: np.random.Generator) -> Student:
    return double(Student.random(HEADS, RANK, DIM, OUT, 3.0, rng))


def examples(
    truth: Student, rng: np.random.Generator, *, padded: bool, causal: bool, number: int = 160
) -> list[Chunk]:
    """What a student puts out on Gaussian tokens, in four chunks; the last tokens of each sequence are padded, or none."""
    keep = (np.arange(TOKENS) < rng.integers(3, TOKENS, size=(number, 1))).astype(float) if padded else None
    x = rng.standard_normal((number, TOKENS, DIM)) * (1 if keep is None else keep[..., None])
    found = []
    for some in np.split(np.arange(number), 4):
        empty = Chunk(x[some], np.zeros((len(some), TOKENS, OUT)), None if keep is None else keep[some], some)
        y = residual_of(truth, empty, columns_of(truth, empty, causal))
        found.append(empty._replace(y=y.reshape(empty.y.shape)))
    return found


def away(student: Student, share: float, rng: np.random.Generator) -> Student:
    """The student with all scores and values off by a share."""
    return student.like(
        tuple(array + share * array.std() * rng.standard_normal(array.shape) for array in student.arrays)
    )


def tangent(student: Student, chunks: list[Chunk], causal: bool) -> Tangent:
    found = eliminate(student, chunks, causal)
    return Tangent.at(found.student, found.factor, chunks, causal)
