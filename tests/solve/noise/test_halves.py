"""Two halves: fits of disjoint halves of the units, whose difference and mean show spread and bias."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.solve._batch import Batch
from attnlearn.solve.noise._halves import Halves, fit_halves
from attnlearn.solve.noise._spread import spread

from ._problems import TRUTH, fitted


def test_halves_differ_as_predicted(rng):
    layer, used = fitted(rng)
    halves, found = fit_halves(layer, used), spread(layer, used)
    for part in ("theta", "w"):
        assert np.all(halves.difference(part) < 2 * found.largest(part, np.log(1e3)))
        assert np.all(halves.difference(part) > 0.5 * found.typical(part))
        assert np.all(halves.bias(layer, part) < found.typical(part))


def test_halves_are_disjoint_and_keep_groups_whole(rng):
    """Each of two groups comes from a layer of its own: each half is one group, and finds its layer."""
    other = TRUTH.replace(theta=1.02 * TRUTH.theta, w=0.98 * TRUTH.w)
    x, groups = rng.standard_normal((600, 4, 5)), rng.permutation(600) % 2
    y = np.where(groups[:, None, None] == 0, TRUTH(x), other(x))
    first, second = fit_halves(TRUTH, Batch(x, y, groups=groups))
    if np.linalg.norm(first.w - TRUTH.w) > np.linalg.norm(second.w - TRUTH.w):
        first, second = second, first
    np.testing.assert_allclose(first.theta, TRUTH.theta, atol=1e-6)
    np.testing.assert_allclose(second.theta, other.theta, atol=1e-6)
    np.testing.assert_allclose(second.w, other.w, atol=1e-6)


def test_difference_and_bias_by_head():
    shift = np.array([3.0, 4.0])[:, None, None] * np.ones((2, 5, 5)) / 5
    halves = Halves(
        TRUTH.replace(w=TRUTH.w + shift, output_bias=np.full(5, 2.0)), TRUTH.replace(output_bias=np.zeros(5))
    )
    assert halves.difference("w") == pytest.approx([3.0, 4.0])
    assert halves.bias(TRUTH, "w") == pytest.approx([1.5, 2.0])
    assert halves.difference("theta") == pytest.approx([0.0, 0.0])
    assert halves.difference("output_bias") == pytest.approx([2 * 5**0.5])
