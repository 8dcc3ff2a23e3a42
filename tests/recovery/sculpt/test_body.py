"""The convex body: what it contains, how wide it is, where it is nearest to 0; and the hull inside it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from attnlearn.recovery.sculpt._body import NO_HALF_SPACES, Body
from attnlearn.recovery.sculpt._certify_rows import HalfSpaces
from attnlearn.recovery.sculpt._hull import count_heads, fit_hull, half_disagreement
from attnlearn.recovery.sculpt._slabs import Slabs


def slabs_around(
    heads: np.ndarray, num: int, width: float, rng: np.random.Generator, false: int = 0
) -> Slabs:
    """Slabs of random normals that see every head at the same place, up to `width`; the last `false` do not."""
    p = heads.shape[1]
    normals = 3 * rng.standard_normal((num, p))
    basis = np.linalg.qr((heads[1:] - heads[0]).T)[0] if len(heads) > 1 else np.zeros((p, 0))
    normals -= (normals @ basis) @ basis.T
    if len(heads) > 1:  # the heads agree up to the width, not exactly
        apart = np.max(np.abs((heads - heads.mean(axis=0)) @ basis))
        normals += (
            rng.uniform(-1, 1, (num, len(heads) - 1)) @ basis.T * 0.5 * width / apart / (len(heads) - 1)
        )
    offsets = normals @ heads.mean(axis=0) + rng.uniform(-0.5 * width, 0.5 * width, num)
    if false:
        offsets[-false:] += 30 * width
    zero = np.zeros(num, int)
    return Slabs(normals, offsets, np.full(num, width), zero, zero, zero, np.zeros(num), np.zeros(num))


def test_a_box_has_its_own_width_and_nearest_point():
    body = Body(np.eye(3) / 0.5, np.array([2.0, 0.0, -3.0]) / 0.5, NO_HALF_SPACES, radius=10.0)
    for axis in range(3):
        assert body.width(np.eye(3)[axis]) == pytest.approx(1.0, abs=1e-6)
    assert body.width(np.array([1.0, 1.0, 1.0])) == pytest.approx(3 / np.sqrt(3), abs=1e-6)
    assert np.allclose(body.minimum_norm_point(), [1.5, 0, -2.5], atol=1e-5)
    assert body.violation(np.array([2.4, 0.4, -2.6])) == 0
    assert body.violation(np.array([2.6, 0.4, -2.6])) > 0
    assert body.violation(np.array([3.0, 0.0, -3.0])) == pytest.approx(1.0)


def test_half_spaces_cut():
    half = HalfSpaces(np.array([[1.0, 0.0]]), np.array([0.5]))
    body = Body(np.eye(2), np.zeros(2), half, radius=10.0)
    assert np.allclose(body.minimum_norm_point(), [0.5, 0.0], atol=1e-5)
    assert body.extent(np.array([1.0, 0.0])) == pytest.approx((0.5, 1.0), abs=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_false_slabs_are_dropped_and_the_heads_stay(heads, rng):
    truth = 2 * rng.standard_normal((heads, 12))
    slabs = slabs_around(truth, 120, 0.1, rng, false=4)
    body = Body.make(slabs, NO_HALF_SPACES, radius=20.0)
    assert body.dropped >= 4
    assert body.dropped <= 8
    assert all(body.violation(head) <= 1e-6 for head in truth)
    along = truth[0] - truth[-1] if heads > 1 else None
    across = rng.standard_normal(12)
    if along is not None:
        assert body.width(along) > np.linalg.norm(along)
        basis = np.linalg.qr((truth[1:] - truth[0]).T)[0]
        across -= basis @ (basis.T @ across)
    assert body.width(across) < 0.3


def test_the_minimum_norm_point_satisfies_the_optimality_conditions(rng):
    body = Body.make(
        slabs_around(2 * rng.standard_normal((2, 10)), 80, 0.1, rng), NO_HALF_SPACES, radius=50.0
    )
    point = body.minimum_norm_point()
    assert body.violation(point) <= 1e-5
    low, _ = body.extent(point)  # no point of the body is lower in the direction of the nearest one
    assert low == pytest.approx(float(point @ point), rel=1e-4)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_the_hull_counts_heads_and_contains_them(heads, rng):
    truth = 2 * rng.standard_normal((heads, 20))
    slabs = slabs_around(truth, 400, 0.2, rng, false=12)
    counted = count_heads(slabs, 4)
    assert counted.num_heads == heads
    assert max(counted.hull.distance(head) for head in truth) < 0.03 * np.linalg.norm(truth[0])
    assert half_disagreement(slabs, heads) < 0.1
    assert (counted.hull.weights[-12:] < 0.5).all()


def test_a_hull_of_too_few_heads_misses_some(rng):
    truth = 2 * rng.standard_normal((3, 20))
    hull = fit_hull(slabs_around(truth, 400, 0.2, rng), 2)
    assert max(hull.distance(head) for head in truth) > 0.3


def test_widths_do_not_depend_on_what_was_asked_before(rng):
    truth = rng.standard_normal((2, 12))
    half = HalfSpaces(rng.standard_normal((400, 12)), np.full(400, -8.0))
    slabs = slabs_around(truth, 120, 0.3, rng)
    body = Body.make(slabs, half, radius=20.0)
    directions = rng.standard_normal((4, 12))
    together = [body.width(direction) for direction in directions]
    alone = [Body.make(slabs, half, radius=20.0).width(direction) for direction in directions]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_rows_that_are_left_out_at_first_still_count(rng):
    truth = rng.standard_normal((2, 12))
    normals = rng.standard_normal((300, 12))
    half = HalfSpaces(normals, (normals @ truth.T).min(axis=1) - 0.1)
    body = Body.make(slabs_around(truth, 300, 0.3, rng), half, radius=20.0)
    direction = rng.standard_normal(12)
    rows = np.concatenate([body.normals, -body.normals, -half.normals])
    limits = np.concatenate([body.offsets + 1, 1 - body.offsets, -half.thresholds])
    ends = [linprog(sign * direction, rows, limits, bounds=(-20.0, 20.0)).fun * sign for sign in (1, -1)]
    np.testing.assert_allclose(body.extent(direction), ends, rtol=1e-6)
