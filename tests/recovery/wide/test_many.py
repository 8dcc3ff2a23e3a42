"""The wide search in many directions: a student, then the heads and the rank that it shows."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance, recover
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery.wide._many import from_student, ranks
from attnlearn.recovery.wide._prune import Pruner
from attnlearn.recovery.wide._starts import Width
from attnlearn.recovery.wide._stochastic import Source
from attnlearn.recovery.wide._student import Student
from attnlearn.scores import Bilinear
from attnlearn.solve._split import Split
from tests.recovery._problems import problem, signals

DIM = 12


def tokens(rng: np.random.Generator, num: int, dim: int = DIM) -> np.ndarray:
    """Words of a list that lean on the word before them, every position with a mean of its own."""
    words = rng.standard_normal((60, dim))[rng.integers(60, size=(num, 8))]
    words[:, 1:] += 0.5 * words[:, :-1]
    return words + rng.standard_normal((8, dim)) + 0.3 * rng.standard_normal((num, 8, dim))


@pytest.fixture
def short(monkeypatch):
    """A course that suits few directions."""
    monkeypatch.setattr(calibration, "STUDENT_STEPS", 1_500)
    monkeypatch.setattr(calibration, "WIDE_FIRST", DIM - 1)


def test_the_needed_heads_and_their_rank_are_what_is_left(rng, seed, short):
    truth = AttentionLayer.random(3, DIM, rank=3, scale=2.0, bias=True, seed=seed)
    whole = problem(truth, tokens(rng, 2_000))
    found = signals(whole)
    assert found.many
    pruner = Pruner(whole, found, Tools(seed=seed))
    wide, left = from_student(pruner, Source(whole, found), Width(8, 6))
    assert wide.layer.num_heads == 8
    assert set(pruner.costs) == set(range(1, 8))
    assert left is not None
    assert (left.layer.num_heads, left.rank) == (3, 3)
    assert distance(left.layer, truth).max < 0.1


def test_recover_goes_that_way_and_certifies(rng, seed, short):
    truth = AttentionLayer.random(3, DIM, rank=3, scale=2.0, bias=True, seed=seed)
    x = tokens(rng, 3_000)
    solution = recover(x, truth(x), seed=seed)
    assert solution.phase("wide search").evidence["starts"][-1]["left"] == 3
    assert solution.certified
    assert distance(solution.layer, truth).max < 1e-9


def test_what_no_student_learns_has_no_heads(rng, short, monkeypatch):
    monkeypatch.setattr(calibration, "STUDENT_STEPS", 200)
    x = tokens(rng, 800)
    y = np.tanh(x @ rng.standard_normal((DIM, DIM))) * np.sign(x.mean(axis=1, keepdims=True))
    whole = Problem(as_examples(x, y), Split.make(len(x)))
    found = signals(whole)
    wide, left = from_student(Pruner(whole, found, Tools()), Source(whole, found), Width(8, 6))
    assert wide.select_error > calibration.STUDENT_ROUGH
    assert left is None


def test_a_rank_is_named_only_where_both_sides_fall(rng):
    low, full = (Student.random(3, rank, DIM, DIM, 1.0, rng) for rank in (4, 6))
    padded = [
        np.concatenate([part, 1e-3 * part[..., :2]], axis=2)
        for part in (low.scores.a, low.scores.b, low.values)
    ]
    outputs = np.concatenate([low.outputs, low.outputs[:, :2]], axis=1)
    assert ranks(Student(Bilinear(*padded[:2], low.scores.c), padded[2], outputs, low.bias)) == [4, 6]
    assert ranks(full) == [6]
