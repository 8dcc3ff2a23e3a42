"""What every kind of scores must satisfy; a new member is added to MEMBERS and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnlearn.scores import (
    Bilinear,
    Capped,
    Curvature,
    Held,
    Normalised,
    Offsets,
    Relative,
    Rotary,
    Rotation,
    Scores,
    Sinks,
    build,
    describe,
)
from attnlearn.solve._white import whitening

Make = Callable[[np.random.Generator], Any]


def bilinear(rank: int | None) -> Make:
    return lambda rng: Bilinear.whole(rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4))).of_rank(
        rank
    )


def rotary(pairs: int, still: int) -> Make:
    rotation = Rotation(tuple(1.3 * 0.4**j for j in range(pairs)), still)

    def make(rng: np.random.Generator) -> Scores:
        query, key = rng.standard_normal((2, 2, 4, rotation.width))
        biases = dict(zip(("query_bias", "key_bias"), rng.standard_normal((2, 2, rotation.width))))
        return Rotary.of_factors(query, key, rotation, **biases)

    return make


def relative(offsets: Offsets, rank: int | None) -> Make:
    def make(rng: np.random.Generator) -> Scores:
        return Relative(bilinear(rank)(rng), rng.standard_normal((2, offsets.numbers)), offsets)

    return make


def normalised(rng: np.random.Generator) -> Held:
    gains = 1 + rng.standard_normal((2, 2, 4)) / 3
    return Normalised(rotary(2, 0)(rng), *gains, 0.1, 0.2)


SOLVED: dict[str, Make] = {
    "bilinear": bilinear(None),
    "bilinear of rank 2": bilinear(2),
    "rotary": rotary(2, 0),
    "rotary of one pair, two coordinates at rest": rotary(1, 2),
    "nothing rotated": rotary(0, 2),
    "table by offset": relative(Offsets("table", reach=4), None),
    "buckets": relative(Offsets("buckets", reach=3, number=4), 2),
    "slopes": relative(Offsets("slope"), 2),
}


HELD: dict[str, Make] = {
    "capped": lambda rng: Capped(rotary(2, 0)(rng), 1.5),
    "sinks": lambda rng: Sinks(rotary(2, 0)(rng), rng.standard_normal(2), np.zeros((2, 4))),
    "normalised": normalised,
    "normalised, capped, with sinks": lambda rng: Sinks(
        Capped(normalised(rng), 1.5), rng.standard_normal(2), np.zeros((2, 4))
    ),
}
"""Members that no solver fits."""
MEMBERS = SOLVED | HELD


@pytest.fixture(params=MEMBERS.values(), ids=MEMBERS.keys())
def held(request, rng) -> Held:
    return request.param(rng)


@pytest.fixture(params=SOLVED.values(), ids=SOLVED.keys())
def scores(request, rng) -> Scores:
    return request.param(rng)


@pytest.fixture
def x(rng) -> np.ndarray:
    return rng.standard_normal((3, 5, 4))


def logits(scores: Scores, x: np.ndarray) -> np.ndarray:
    return scores.logits(x, np.swapaxes(x, 1, 2).copy())[0]


def kept(scores: Scores, x: np.ndarray):
    return scores.logits(x, np.swapaxes(x, 1, 2).copy())[1]


def tangent_of(scores: Scores, rng: np.random.Generator) -> Scores:
    return scores.shaped(rng.standard_normal(scores.flat().size))


def up_to_queries(array: np.ndarray, held: Held) -> np.ndarray:
    """Scores without what a query adds to all its keys, where the softmax does not see it."""
    return array if held.rule else array - array.mean(axis=-1, keepdims=True)


def test_it_satisfies_the_protocol(held, x):
    assert logits(held, x).shape[:-1] == (3, 5, held.heads)
    assert held.astype(np.float32).dtype == np.float32
    assert held.at(0).theta.shape == (held.heads, held.dim, held.dim)


def test_description_and_arrays_are_the_scores(held, x):
    again = build(describe(held), held.arrays())
    np.testing.assert_allclose(logits(again, x), logits(held, x), atol=1e-12)
    assert describe(again) == describe(held)
    assert again.words() == held.words()


def test_one_gauge_keeps_the_patterns(held, x):
    one = held.canonical()
    np.testing.assert_allclose(
        up_to_queries(logits(one, x), held), up_to_queries(logits(held, x), held), atol=1e-9
    )
    np.testing.assert_allclose(one.canonical().flat(), one.flat(), atol=1e-9)


def test_queries_and_keys_meet_as_the_factors_do(held, rng):
    width = held.rotation.width if isinstance(held, Rotary) else 4
    queries, keys, dq, dk = (held.ordered(part) for part in rng.standard_normal((4, 3, 5, 2, width)))
    found, met = held.meet(queries.copy(), keys.copy())
    step = 1e-6
    ends = [held.meet(queries + s * step * dq, keys + s * step * dk)[0] for s in (1, -1)]
    change = held.along(dq.copy(), dk.copy(), met)
    np.testing.assert_allclose(change, (ends[0] - ends[1]) / (2 * step), atol=1e-7)
    back = rng.standard_normal(found.shape)
    one, other = held.part(back, met)
    assert float(np.vdot(change, back)) == pytest.approx(float(np.vdot(one, dq) + np.vdot(other, dk)))


def test_a_vector_keeps_its_shape(held, x):
    again = held.shaped(held.flat())
    np.testing.assert_array_equal(logits(again, x), logits(held, x))


def test_the_derivative_is_that_of_the_scores(held, x, rng):
    tangent, step = tangent_of(held, rng), 1e-6
    moved = [logits(held.shaped(held.flat() + sign * step * tangent.flat()), x) for sign in (1, -1)]
    np.testing.assert_allclose(
        held.jvp(tangent, kept(held, x)), (moved[0] - moved[1]) / (2 * step), atol=1e-7
    )


def test_the_gradient_is_the_adjoint_of_the_derivative(held, x, rng):
    tangent, change = tangent_of(held, rng), rng.standard_normal(logits(held, x).shape)
    there = float(np.vdot(held.jvp(tangent, kept(held, x)), change))
    back = float(tangent.flat() @ held.vjp(change, kept(held, x)).flat())
    assert there == pytest.approx(back, rel=1e-10)


def test_unknowns_are_the_rank_of_the_derivative(held, rng):
    """On many sequences, and without what a query adds to all its keys; the gauge is not counted."""
    x = rng.standard_normal((60, 5, held.dim))
    at = kept(held, x)
    directions = np.eye(held.flat().size)
    columns = [up_to_queries(held.jvp(held.shaped(one), at), held).ravel() for one in directions]
    assert held.unknowns() == np.linalg.matrix_rank(np.stack(columns), tol=1e-8)


def test_other_coordinates_give_the_same_patterns(held, rng):
    x = 2 + rng.standard_normal((20, 5, held.dim)) @ rng.standard_normal((held.dim, held.dim))
    white = whitening(x, None)
    inside = white.inside(held)
    np.testing.assert_allclose(
        up_to_queries(logits(inside, white.tokens(x)), held), up_to_queries(logits(held, x), held), atol=1e-9
    )
    np.testing.assert_allclose(
        up_to_queries(logits(white.outside(inside), x), held), up_to_queries(logits(held, x), held), atol=1e-8
    )


def identity_curvature(scores: Scores):
    size = scores.heads * scores.dim
    return scores.preconditioner(
        Curvature(
            np.eye(size),
            np.eye(scores.dim),
            np.ones((5, scores.heads, 5)),
            lambda matrix: np.linalg.inv(np.linalg.cholesky(matrix)),
        )
    )


def test_coordinates_without_gauge_show_every_change_once(scores, rng):
    by = identity_curvature(scores)
    gauge = scores.gauge(by)
    units = np.eye(scores.flat().size)
    free = np.stack([scores.without_gauge(scores.shaped(one), gauge).flat() for one in units])
    again = np.stack([scores.without_gauge(scores.shaped(one.copy()), gauge).flat() for one in free])
    np.testing.assert_allclose(again, free, atol=1e-5)
    assert np.linalg.matrix_rank(free, tol=1e-3) == scores.unknowns()
    at = kept(scores, rng.standard_normal((60, 5, scores.dim)))
    images = [scores.jvp(by.apply(scores.shaped(one.copy())), at).ravel() for one in free]
    assert np.linalg.matrix_rank(np.stack(images), tol=1e-4) == scores.unknowns()


def test_a_preconditioner_has_its_adjoint(scores, rng):
    by = identity_curvature(scores)
    t, g = tangent_of(scores, rng), tangent_of(scores, rng)
    assert by.apply(t).flat() @ g.flat() == pytest.approx(t.flat() @ by.transpose(g).flat(), rel=1e-5)


def test_no_coordinates_move_what_shows_further_than_the_reach(scores, rng):
    x = 1 + rng.standard_normal((50, 5, scores.dim)) @ rng.standard_normal((scores.dim, scores.dim))
    white = whitening(x, None)
    inside = white.inside(scores)
    by = identity_curvature(inside)
    reach = inside.reach(by, white)
    for _ in range(50):
        t = rng.standard_normal(inside.flat().size)
        tangent = by.apply(inside.shaped(t / np.linalg.norm(t)))
        theta, _ = inside.shown(tangent)
        outside = white.inverse.T @ theta @ white.inverse
        assert np.all(np.linalg.norm(outside, axis=(1, 2)) <= reach.theta * (1 + 1e-9))
