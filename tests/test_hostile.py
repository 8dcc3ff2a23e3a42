"""The hostile suite: no established claim is false, and layers that their examples show are certified.

The quick part runs a few problems of many kinds in about a minute on one core; the slow part runs every kind.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.problems import ALL, ENEMIES, GENERAL, HOSTILE, POSITIONS, SCULPTING, UNMODELLED, WITH_ERRORS
from tests.problems._plain import forward
from tests.problems._tied import TIED

FRESH = 20_000
QUICK = (
    "antipodal", "mirrored", "rotated", "displacements", "repeated", "tied and padded", "few free",
    "cancelling on signs", "rare direction", "jittered", "giant document", "opposite", "oracle: window",
    "oracle: short memory", "oracle: checkpoint", "compress: uneven", "compress: copies",
)  # fmt: skip
SHOWN = ("gaussian", "float32", "correlated", "centred", "layer norm", "padded")


def made(kind: str, seed: int, part: int = 8):
    return ALL[kind](np.random.default_rng([seed, part]))


def test_there_are_many_kinds() -> None:
    parts = (HOSTILE, UNMODELLED, ENEMIES, GENERAL, SCULPTING, WITH_ERRORS, POSITIONS)
    assert len(ALL) == sum(map(len, parts)) >= 40


@pytest.mark.parametrize("kind", TIED)
def test_rivals_are_the_same_function(kind: str, seed: int) -> None:
    problem = made(kind, seed)
    x, y, mask, _ = problem.unseen(200)
    for rival in problem.rivals:
        tolerance = 1e-9 if x.dtype == np.float64 else 1e-3
        np.testing.assert_allclose(forward(rival, x, mask), y, atol=tolerance * np.abs(y).max())


@pytest.mark.parametrize("kind", QUICK)
def test_no_established_claim_is_false(kind: str, seed: int) -> None:
    problem = made(kind, seed)
    assert problem.broken(problem.run(), FRESH) == []


@pytest.mark.parametrize("kind", SHOWN)
def test_what_examples_show_is_certified(kind: str, seed: int) -> None:
    problem = made(kind, seed)
    solution = problem.run()
    assert problem.identifiable
    assert solution.certified
    assert problem.broken(solution, FRESH) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_every_kind_is_a_function_of_its_seed(kind: str, seed: int) -> None:
    first, second = made(kind, seed), made(kind, seed)
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.y, second.y)
    assert np.isfinite(first.y).all()
    assert first.x.dtype == first.y.dtype
    assert first.right


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_every_kind_ends_in_a_right_outcome_without_a_false_claim(kind: str, seed: int) -> None:
    problem = made(kind, seed, part=9)
    solution = problem.run()
    assert problem.broken(solution, 100_000) == []
    assert solution.outcome.name in problem.right
