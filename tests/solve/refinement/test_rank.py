"""Refine finds out that heads have a lower rank than they were given, and takes it back when that was wrong."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance
from attnlearn.scores import Bilinear
from attnlearn.solve import _calibration as calibration
from attnlearn.solve.refinement import refine
from attnlearn.solve.refinement._rank import RankControl, lowered

DIM, RANK = 10, 2


def problem(seed: int, tail: float = 0.0) -> tuple[AttentionLayer, AttentionLayer, np.ndarray]:
    """A layer of rank 2 plus `tail` times a matrix of full rank, a start near it, and tokens."""
    rng = np.random.default_rng([seed, 5])
    layer = AttentionLayer.random(2, DIM, rank=RANK, scale=3.0, seed=seed, bias=True)
    layer = layer.replace(theta=layer.theta + tail * rng.standard_normal(layer.theta.shape))
    near = layer.theta + 0.05 * rng.standard_normal(layer.theta.shape)
    return layer, layer.replace(theta=near), rng.standard_normal((600, 5, DIM))


@pytest.mark.parametrize("given", [4, None])
def test_a_rank_too_large_is_lowered_and_the_fit_is_exact(seed, given) -> None:
    layer, start, x = problem(seed)
    refined = refine(start, x, layer(x), rank=given)
    assert refined.stop == "floor"
    assert distance(refined.layer, layer).max < 1e-10
    assert np.linalg.matrix_rank(refined.layer.theta, tol=1e-9).max() == RANK


def test_small_singular_values_are_not_lost(seed) -> None:
    layer, start, x = problem(seed, tail=1e-4)  # below what is open when the rank is first looked at
    refined = refine(start, x, layer(x), rank=None)
    assert refined.stop == "floor"
    assert distance(refined.layer, layer).max < 1e-10


def test_lowered_needs_a_clear_gap() -> None:
    values = np.array([1.0, 0.5, 0.1, 0.02, 0.004, 0.0008])
    even = Bilinear.whole(np.diag(values)[None], np.zeros((1, 6))).of_rank(5)
    assert lowered(even, 0.03 / calibration.RANK_OPEN) is None
    gap = Bilinear.whole(np.diag([1.0, 0.5, 0.4, 1e-6, 1e-7, 0.0])[None], np.zeros((1, 6))).of_rank(5)
    found = lowered(gap, 1e-4)
    assert found is not None
    assert found.a.shape == (1, 6, 3)


def test_heads_of_different_ranks_are_fitted_exactly(seed) -> None:
    """Columns that a head does not have are zero and stay so; two small ones would leave no curvature."""
    layer, _, x = problem(seed)
    u, s, vt = np.linalg.svd(layer.theta)
    kept = (np.arange(DIM) < np.array([[1], [RANK]]))[:, None, :]
    truth = layer.replace(theta=(u * s[:, None, :] * kept) @ vt)
    moved = (u * (1.03 * s[:, None, :] + 0.01) * kept) @ vt
    refined = refine(truth.replace(theta=moved), x, truth(x), rank=RANK)
    assert refined.stop == "floor"
    assert len(refined.steps) < 12
    assert np.linalg.matrix_rank(refined.layer.theta, tol=1e-12).tolist() == [1, RANK]
    assert distance(refined.layer, truth).max < 1e-12


def control(residual: float = 1e-4) -> tuple[RankControl, Bilinear, Bilinear]:
    """A control that has lowered the rank of a matrix of rank 2 up to 1e-6, at this residual."""
    found = RankControl(may_lower=True)
    higher = Bilinear(np.diag([1.0, 0.5, 1e-6, 1e-6])[None], None, np.zeros((1, 4)))
    lower = found.changed(higher, residual, 0.1, None)
    assert lower is not None
    assert lower.rank == 2
    return found, higher, lower


@pytest.mark.parametrize(("residual", "stop", "raised"), [
    (0.9e-4, "noise", False),  # as good as before: the residual is noise
    (0.4e-4, "noise", True), (0.9e-4, "stalled", True), (0.9e-4, "max_steps", False), (0.9e-4, None, False),
    (0.9e-4, "floor", False), (0.5e-4, "deadline", False), (2e-4, "deadline", True),
])  # fmt: skip
def test_a_rank_that_was_lowered_in_vain_is_taken_up_again_once(residual, stop, raised) -> None:
    found, higher, lower = control()
    again = found.changed(lower, residual, 0.1, stop)
    assert (again is higher) if raised else (again is None)
    assert found.changed(higher, residual, 0.1, stop) is None  # it is neither lowered nor raised twice


def test_the_rank_is_lowered_only_at_small_residuals() -> None:
    scores = control()[1]
    low, slow = calibration.DIGIT * calibration.RANK_BELOW, calibration.RANK_BELOW
    for residual, shrink, expected in [
        (0.9 * low, 0.1, True),
        (1.1 * low, 0.1, False),
        (0.9 * slow, 0.9, True),
    ]:
        assert (RankControl(True).changed(scores, residual, shrink, None) is not None) == expected
    assert RankControl(may_lower=False).changed(scores, 0.9 * low, 0.9, None) is None
