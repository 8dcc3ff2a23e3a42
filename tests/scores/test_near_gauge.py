"""Coordinates of rotary scores: changes that no input shows are known, changes that hardly show have a curvature of about one."""

from __future__ import annotations

import numpy as np

from attnlearn.scores import Curvature, Rotary, Rotation
from attnlearn.scores._near_gauge import commuting
from attnlearn.scores._pairs import moved

D, K = 6, 8


def inverse_factor(matrix):
    return np.linalg.inv(np.linalg.cholesky(matrix))


def scores_of(rng, rotation):
    a, b = rng.standard_normal((2, 1, D + 1, rotation.width))
    b[:, -1] = 0
    return Rotary(a, b, rotation)


def coordinates_of(scores):
    met = np.ones((K, 1, K)) * np.tri(K)[:, None]
    return scores.preconditioner(Curvature(np.eye(D), np.eye(D), met, inverse_factor))


def by_offset(scores, tangent):
    """The change of Theta at every offset seen, along a tangent."""
    turns = [scores.rotation.matrix(offset) for offset in range(1 - K, 1)]
    a, b, da, db = scores.a[0], scores.b[0, :-1], tangent.a[0], tangent.b[0, :-1]
    return np.stack([da @ turn @ b.T + a @ turn @ db.T for turn in turns])


def test_a_step_is_the_sum_to_first_order_and_leaves_a_gauge_step_without_effect(rng):
    rotation = Rotation((1.0, 0.01))
    scores = scores_of(rng, rotation)
    a, b = scores.a[0], scores.b[0]
    da, db = rng.standard_normal((2, *a.shape))
    errors = []
    for size in (1e-3, 1e-4):
        found = moved(a, b, size * da, size * db)
        errors.append(np.linalg.norm(found[0] - a - size * da) + np.linalg.norm(found[1] - b - size * db))
    assert errors[1] < 0.02 * errors[0]
    for g in commuting(rotation):
        found = moved(a, b, a @ g, -b @ g.T)
        for offset in (-3, 0):
            turn = rotation.matrix(offset)
            np.testing.assert_allclose(found[0] @ turn @ found[1].T, a @ turn @ b.T, atol=1e-10)


def test_slow_frequencies_have_the_curvature_of_fast_ones(rng):
    """Directions that mix pairs of frequencies 0.01 and 0.001 hardly change any Theta(D); in coordinates they do as much as others."""
    scores = scores_of(rng, Rotation((0.01, 0.001)))
    by = coordinates_of(scores)
    weights = by.heads[0].offset_least
    assert 0 < weights <= 1 / K
    size = scores.flat().size
    free = [scores.without_gauge(scores.shaped(one), by).flat() for one in np.eye(size)]
    changes = np.stack([by_offset(scores, by.apply(scores.shaped(one))).ravel() for one in free])
    plain = np.stack([by_offset(scores, scores.shaped(one)).ravel() for one in np.eye(size)])
    values, before = (np.linalg.svd(matrix, compute_uv=False) for matrix in (changes, plain))
    rank = scores.unknowns() - 4  # key biases of the two pairs are in no Theta
    assert values[rank - 1] > 0.05 * values[0]
    assert before[rank - 1] < 0.02 * before[0]
