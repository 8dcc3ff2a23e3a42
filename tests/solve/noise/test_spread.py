"""The spread: errors of fits are as large as it says, also where errors depend on each other; few sequences show in the influence."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._batch import Batch
from attnlearn.solve.certification._point import prepare
from attnlearn.solve.noise._spread import spread, tail, unexplained
from attnlearn.solve.refinement import RefineConfig, refine

from ._problems import TRUTH, fitted


@pytest.mark.parametrize("kind", ["independent", "offset", "unequal"])
def test_errors_are_as_large_as_the_spread(kind):
    ratios, tails = [], []
    for seed in range(4):
        layer, used = fitted(np.random.default_rng(seed), kind, num=600)
        found = spread(layer, used)
        for part in ("theta", "w"):
            error = np.linalg.norm(getattr(layer, part) - getattr(TRUTH, part), axis=(1, 2))
            ratios.extend(error / found.typical(part))
            tails.extend(error / found.largest(part, np.log(1e3)))
    assert 0.7 < np.sqrt(np.mean(np.square(ratios))) < 1.4
    assert max(tails) < 1


def test_one_sequence_with_a_large_error_carries_the_spread(rng):
    layer, used = fitted(rng)
    y = used.y.copy()
    y[7] += 50.0
    found = spread(layer, Batch(used.x, y))
    assert found.carried_by < 5
    assert found.worst(1)[0][0] == 7
    assert spread(layer, used).carried_by > 100


def test_clusters_are_groups(rng):
    layer, used = fitted(rng, num=400)
    twice = Batch(
        np.concatenate([used.x] * 2), np.concatenate([used.y] * 2), groups=np.tile(np.arange(400), 2)
    )
    alone, grouped = spread(layer, used, draws=24), spread(layer, twice, draws=24)
    assert grouped.typical("w") == pytest.approx(alone.typical("w"), rel=0.35)  # no more is known from copies


def test_the_tail_covers_as_often_as_it_says(rng):
    scales = np.geomspace(1, 0.05, 20)
    draws = rng.standard_normal((12, 20)) * scales
    fresh = np.linalg.norm(rng.standard_normal((4_000, 20)) * scales, axis=1)
    assert np.mean(fresh <= tail(draws @ draws.T, np.log(100))) >= 0.99


def test_what_parameters_can_do_is_explained(rng):
    _, used = fitted(rng, num=300)
    point = prepare(TRUTH, used.x, None, None, joint=True, sequences=300)
    moved = TRUTH.replace(theta=TRUTH.theta * 1.0001, w=TRUTH.w * 0.9999)(used.x) - TRUTH(used.x)
    assert np.linalg.norm(unexplained(point, moved)) < 0.05 * np.linalg.norm(moved)
    noise = rng.standard_normal(moved.shape)
    assert np.linalg.norm(unexplained(point, noise)) > 0.9 * np.linalg.norm(noise)


def test_a_fit_short_of_its_optimum_shows_what_is_left(rng):
    layer, used = fitted(rng)
    moved = layer.replace(w=1.01 * layer.w)
    norms = np.linalg.norm(layer.w, axis=(1, 2))
    np.testing.assert_allclose(spread(moved, used).undone("w", 3.0) / norms, 0.01, rtol=0.2)
    there = spread(layer, used)
    assert np.all(there.undone("w", 3.0) < there.typical("w"))


def test_errors_move_two_close_heads_as_far_as_the_spread_says(rng):
    """The direction along which W moves from one head to the other hardly shows in the outputs."""
    truth = AttentionLayer.random(2, 5, seed=1)
    (first, second), (one, other) = truth.theta, truth.w
    truth = truth.replace(
        theta=np.stack([first, first + 0.01 * second]), w=np.stack([one, one + 0.1 * other])
    )
    x = rng.standard_normal((600, 5, 5))
    y = truth(x) + 1e-8 * rng.standard_normal(x.shape)
    config = RefineConfig(equations_per_unknown=np.inf, float64_solves=True)
    found = spread(refine(truth, x, y, config=config).layer, Batch(x, y))
    by_hand = [
        np.linalg.norm(
            refine(truth, x, truth(x) + 1e-8 * rng.standard_normal(x.shape), config=config).layer.w - truth.w,
            axis=(1, 2),
        )
        for _ in range(6)
    ]
    np.testing.assert_allclose(found.typical("w"), np.sqrt(np.mean(np.square(by_hand), axis=0)), rtol=0.5)
