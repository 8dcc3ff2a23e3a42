"""Claim C3: what it bounds, among which layers, and how it says so."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Support, distance
from attnlearn._certificate import Claim
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve.certification._parameters import Bounds, parameter_bounds, parameter_claim

COUNTED = Claim("C2", "two heads", established=True)


def bounds_of(
    layer: AttentionLayer,
    x: np.ndarray,
    error: float,
    rank: int | None = None,
    support=None,
    enough: float = calibration.APART_LEAST / calibration.STANDS_OUT,
    established: float = calibration.PARAMETER_ERROR,
) -> Bounds:
    fitted, scale = Batch(x, layer(x)), example_scale(Batch(x, layer(x)))
    return parameter_bounds(
        layer,
        fitted,
        error=error,
        scale=scale,
        support=support,
        rank=rank,
        enough=enough,
        established=established,
        on_step=None,
    )


def claim_of(layer: AttentionLayer, bounds: Bounds, counted: Claim = COUNTED, support=None):
    claim, checks = parameter_claim(layer, bounds, support=support, counted=counted)
    return claim, {check.code: check for check in checks}


@pytest.fixture
def layer(seed: int) -> AttentionLayer:
    return AttentionLayer.random(num_heads=2, dim=4, rank=2, bias=True, seed=seed)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((400, 4, 4))


def test_curvature_is_included_where_it_is_bounded(layer, x):
    found = bounds_of(layer, x, 1e-14)
    claim, _ = claim_of(layer, found)
    assert found.ball is not None
    assert claim.value["proved"]
    assert "curvature included" in claim.text
    assert "to first order" not in claim.text
    assert claim.established


def test_a_large_error_leaves_the_first_order(layer, x):
    found = bounds_of(layer, x, 1e-5)
    claim, _ = claim_of(layer, found)
    assert found.ball is None
    assert not claim.value["proved"]
    assert "to first order" in claim.text
    assert "curvature included" not in claim.text


def test_the_bound_with_curvature_is_not_below_the_linear_one(layer, x):
    found = bounds_of(layer, x, 1e-12)
    rho = 1e-12 * example_scale(Batch(x, layer(x))) * np.linalg.norm(found.conditioning.weights)
    linear = calibration.PARAMETER_SAFETY * rho * np.maximum(found.conditioning.theta, found.conditioning.w)
    assert (found.heads >= linear * (1 - 1e-12)).all()


def test_a_layer_with_these_outputs_is_within_the_bound(layer, x, rng):
    """Layers moved by a little: the bound of the error that the move makes covers the move."""
    moved = layer.replace(theta=layer.theta + 1e-9 * rng.standard_normal(layer.theta.shape))
    change = np.linalg.norm(moved(x) - layer(x), axis=(1, 2)).max() / example_scale(Batch(x, layer(x)))
    assert distance(moved, layer).max <= bounds_of(layer, x, change).worst


@pytest.mark.parametrize("rank", [1, 2])
def test_the_rank_is_named_where_the_jacobian_is_limited_to_it(rank, seed, rng):
    """Too few sequences for whole Theta: the claim is about layers of the found rank."""
    low = AttentionLayer.random(num_heads=2, dim=12, rank=rank, seed=seed)
    x = rng.standard_normal((900, 4, 12))
    found = bounds_of(low, x, 1e-13, rank=rank)
    claim, _ = claim_of(low, found)
    assert found.rank == claim.value["rank"] == rank
    assert f"among layers whose Theta have rank at most {rank}" in claim.text
    assert "to first order" in claim.text  # curvature is bounded for whole Theta only


def test_no_rank_is_named_where_whole_theta_are_determined(layer, x):
    for rank in (None, 4):
        found = bounds_of(layer, x, 1e-13, rank=rank)
        claim, _ = claim_of(layer, found)
        assert found.rank is None
        assert "rank at most" not in claim.text


def test_bounds_of_biases_that_say_nothing_are_not_printed(layer, x):
    found = bounds_of(layer, x, 1e-13)
    claim, _ = claim_of(layer, found)
    assert claim.value["biases"] == found.biases.max()
    assert f"each bias within {found.biases.max():.3g}" in claim.text
    biases = found.biases.copy()
    biases[0] = 1.01 * calibration.PARAMETER_ERROR
    for worst in (biases, np.full_like(biases, np.inf)):
        claim, _ = claim_of(layer, found._replace(biases=worst))
        assert "biases are not bounded" in claim.text
        assert "each bias within" not in claim.text
        assert claim.value["biases"] is None
        assert claim.value["bound"] == claim.value["weights"] == found.worst
        assert claim.established  # the claim is about Theta and W then


def test_the_claim_rests_on_the_count(layer, x):
    missing = Claim("C2", "heads not counted", established=False, assumes=("a density",))
    claim, checks = claim_of(layer, bounds_of(layer, x, 1e-13), missing)
    assert not claim.established
    assert checks["C3.count"].status.name == "FAILS"
    assert claim.assumes == ("a density",)


def test_a_bound_above_one_per_cent_is_not_established(layer, x):
    claim, checks = claim_of(layer, bounds_of(layer, x, 1e-2))
    assert checks["C3.bound"].status.name == "FAILS"
    assert not claim.established


def test_nothing_is_said_where_tokens_leave_out_a_direction(layer, x):
    flat = x * np.array([1.0, 1.0, 1.0, 0.0])
    claim, checks = claim_of(layer, bounds_of(layer, flat, 1e-13))
    assert checks["C3.tokens"].value == 3
    assert not claim.established
    support = Support(np.zeros(4), np.eye(4)[:, :3])
    claim, checks = claim_of(layer, bounds_of(layer, flat, 1e-13, support=support), support=support)
    assert claim.established, claim.text
    assert "on the span of the tokens" in claim.text


def test_a_flat_head_is_measured_by_the_largest(layer, x):
    flat = layer.replace(theta=layer.theta * np.array([1.0, 0.0])[:, None, None])
    claim, _ = claim_of(flat, bounds_of(flat, x, 1e-13))
    assert "a Theta of zero: relative to the largest" in claim.text


def test_a_bound_that_changes_a_claim_is_sharp(layer, x):
    """Where a rough bound is not enough, the sharp one takes its place."""
    rough, sharp = bounds_of(layer, x, 1e-13), bounds_of(layer, x, 1e-13, enough=0.0, established=0.0)
    assert (
        sharp.worst <= 1.2 * rough.worst
    )  # a small layer is known just as well from few steps, and S - tau A is a little less than S
    assert sharp.conditioning.guaranteed >= (1 - calibration.ENOUGH_SHARE) * sharp.conditioning.eigenvalue
    assert rough.conditioning.guaranteed >= calibration.ENOUGH_SHARE * rough.conditioning.eigenvalue
