"""Starts: random scores of a known size, coordinates that keep their frequencies in another kind, and pairs that turn the other way."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.recovery.positions._kinds import rotary
from attnlearn.recovery.positions._starts import conjugated, random_scores, recast
from attnlearn.scores import Offsets, Rotary, Rotation

DIM = 40


@pytest.mark.parametrize("kind", [None, Offsets("table", reach=5), Rotation((1.0, 0.1, 0.01))])
def test_random_scores_have_a_standard_deviation_of_a_half(kind, rng):
    scores = random_scores(kind, 6, DIM, rng)
    x = rng.standard_normal((50, 6, DIM))
    logits, _ = scores.logits(x, np.swapaxes(x, 1, 2))
    assert 0.4 < logits.std() < 0.6


def test_fewer_turned_pairs_keep_the_coordinates_that_turned_about_as_fast(rng):
    """A head whose other pairs are zero scores as before when the pair that is left has the same frequency."""
    old, new = Rotation((1.0, 0.1, 0.01)), Rotation((0.1,), still=4)
    a, b = rng.standard_normal((2, 2, DIM + 1, 6))
    a[..., [0, 2, 3, 5]] = 0
    scores = Rotary(a, b, old)
    found = recast(scores, new)
    assert found.rotation == new
    for offset in (0, -1, -7):
        assert np.allclose(found.at(offset).theta, scores.at(offset).theta)


def test_all_kinds_of_a_family_take_each_others_coordinates(rng):
    first, *others = rotary(8)
    scores = random_scores(first, 2, DIM, rng)
    for kind in others:
        found = recast(scores, kind)
        assert found.rotation == kind
        assert found.a.shape == scores.a.shape
        assert not found.b[:, -1, 2 * kind.pairs :].any()


def test_a_pair_that_turns_the_other_way_is_the_score_of_the_opposite_offset(rng):
    scores = random_scores(Rotation((0.3,)), 2, DIM, rng)
    turned = conjugated(scores, 1)
    assert np.allclose(turned.at(3).theta[1], scores.at(-3).theta[1])
    assert np.allclose(turned.at(3).theta[0], scores.at(3).theta[0])
    again = conjugated(turned, 1)
    assert np.array_equal(again.a, scores.a)
    assert np.array_equal(again.b, scores.b)
