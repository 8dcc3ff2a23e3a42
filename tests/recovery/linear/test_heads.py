"""The lowest rank with a symmetric part, and the proof that fewer heads do not do."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.recovery.linear._heads import (
    Heads,
    decompose,
    fewest_heads,
    from_symmetric_part,
    other_side,
    polished,
)


def heads(rng, number, queries, dim, out, rank):
    theta = rng.standard_normal((number, queries, rank)) @ rng.standard_normal((number, rank, dim))
    w = rng.standard_normal((number, dim, rank)) @ rng.standard_normal((number, rank, out))
    return theta, w


@pytest.mark.parametrize(("number", "rank"), [(1, 1), (2, 1), (3, 2), (4, 6), (6, 3)])
def test_heads_are_found_and_counted(rng, number, rank):
    s = from_symmetric_part(*heads(rng, number, 7, 6, 6, rank))
    found = decompose(s, number, rng)
    assert np.linalg.norm(from_symmetric_part(found.theta, found.w) - s) < 1e-12 * np.linalg.norm(s)
    assert fewest_heads(s, 1e-9, rng)[0] == number


def test_fewer_heads_leave_a_residual(rng):
    s = from_symmetric_part(*heads(rng, 4, 6, 6, 6, 6))
    assert decompose(s, 3, rng).residual > 1e-2


@pytest.mark.parametrize("trial", range(20))
def test_the_bound_never_exceeds_the_heads(rng, trial):
    """Also for heads that are nearly dependent, as long as the error that is given is the error made."""
    theta, w = heads(rng, 3, 5, 5, 4, 2)
    theta[2] = theta[0] + 10.0**-trial * theta[2]
    s = from_symmetric_part(theta, w)
    noise = rng.standard_normal(s.shape)
    noise = 1e-6 * (noise + noise.transpose(0, 2, 1, 3)) / np.linalg.norm(noise)
    number, margin = fewest_heads(s + noise, np.linalg.norm(noise), rng)
    assert number <= 3
    assert margin >= 1


def test_the_other_side_is_a_least_squares_solution(rng):
    theta, _ = heads(rng, 2, 4, 3, 5, 3)
    s = rng.standard_normal((4, 3, 3, 5))
    s = s + s.transpose(0, 2, 1, 3)
    w = other_side(s, theta)
    base = np.linalg.norm(s - from_symmetric_part(theta, w))
    for _ in range(20):
        step = 1e-4 * rng.standard_normal(w.shape)
        assert np.linalg.norm(s - from_symmetric_part(theta, w + step)) >= base


def test_a_few_steps_end_at_rounding_where_coordinates_have_very_different_sizes(rng):
    sizes = 10.0 ** rng.uniform(-1.5, 1.5, 5)
    theta = rng.standard_normal((2, 6, 5)) * sizes * np.append(sizes, 1.0)[:, None]
    w = rng.standard_normal((2, 5, 3)) * sizes[:, None]
    s = from_symmetric_part(theta, w)
    near = Heads(theta * (1 + 1e-4 * rng.standard_normal(theta.shape)), w, 1.0)
    found = polished(s, near)
    assert found.residual < 1e-13
    np.testing.assert_allclose(from_symmetric_part(found.theta, found.w), s, atol=1e-13 * np.abs(s).max())
