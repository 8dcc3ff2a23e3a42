"""Heads that share keys are recognised in any gauge, and written with equal keys."""

from __future__ import annotations

import numpy as np

from attnlearn.scores import Rotary, frequencies
from attnlearn.scores._grouped import key_groups, with_shared_keys


def test_groups_are_found_in_any_gauge_and_kept_by_sharing(rng):
    rotation = frequencies(6, base=30.0, rotated=4).rotation
    a, b = rng.standard_normal((2, 4, 6, 6))
    b[..., -1, 4:] = 0
    scores = Rotary(a, b[[0, 1, 0, 1]], rotation)
    groups = (0, 1, 0, 1)
    assert key_groups(scores, 1e-9) == groups
    moved = scores.canonical()
    assert key_groups(moved, 1e-9) == groups
    shared = with_shared_keys(moved, groups)
    np.testing.assert_array_equal(shared.b[0], shared.b[2])
    for offset in (-3, 0, 2):
        np.testing.assert_allclose(shared.at(offset).theta, scores.at(offset).theta, atol=1e-10)
    assert key_groups(Rotary(a, b, rotation), 1e-3) == (0, 1, 2, 3)
