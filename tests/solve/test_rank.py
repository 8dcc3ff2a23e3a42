"""Ranks from singular values: above a noise, up to rounding, before a fall; and the rank that a sum has unless it cancels."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._rank import joint_rank, largest_fall, largest_rank, profile, rank_above, steepest


def test_every_head_has_its_own_noise():
    values = np.array([[4.0, 3.0, 2.0], [4.0, 3.0, 2.0]])
    assert rank_above(values, np.array([[2.5], [5.0]])) == 2
    assert rank_above(values, 5.0) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_rounding_of_stored_weights_does_not_count(seed, dtype, rank):
    layer = AttentionLayer.random(3, 8, rank=rank, seed=seed).astype(dtype)
    assert largest_rank(layer.theta) == largest_rank(layer.w) == rank


def test_matrices_that_are_zero_have_rank_zero():
    assert largest_rank(np.zeros((2, 4, 3))) == 0
    assert joint_rank(np.zeros((2, 4, 3))) == 1  # a sum is asked for its first value at least


def test_a_sum_of_matrices_that_cancel_has_a_smaller_rank_than_all_of_them(rng):
    w = rng.standard_normal((1, 6, 4))
    assert joint_rank(np.concatenate([w, -w])) == 4
    assert largest_rank(np.concatenate([w, -w]).sum(axis=0)[None]) == 0


def test_the_profile_falls_where_all_heads_fall():
    values = np.array([[2.0, 1.0, 1e-3], [8.0, 1e-2, 1e-3]])
    np.testing.assert_allclose(profile(values), [4.0, 0.1, 1e-3])
    assert largest_fall(profile(values), 50.0) == 2
    assert largest_fall(np.array([1.0]), 2.0) is None


def test_a_fall_wants_values_to_spare():
    assert steepest(np.array([1.0, 1e-9]), 2) == (1, 1.0)
    assert steepest(np.array([1.0, 1e-9, 1e-9]), 2)[0] == 1
    assert steepest(np.array([3.0, 2.0, 1.5, 1.2, 1.0]), 2)[1] < 2
