"""The certifier alone: no wrong layer is certified, right ones are, and every claim is about what it says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, Status, Support, distance
from attnlearn.solve._batch import Batch, example_scale, rounding_floor, unit_errors
from attnlearn.solve._split import Split
from attnlearn.solve.certification._certify import certify
from tests.problems import broken_claims
from tests.problems._pairs import Pair, pairs


def judge(pair: Pair):
    """Certify a pair as a learner would: fit examples for the Jacobian, the rest untouched."""
    half = len(pair.x) // 2
    fit, held = (Batch(pair.x[side], pair.y[side]) for side in (slice(half), slice(half, None)))
    return certify(pair.layer, held, fit, scale=example_scale(fit))


def honesty(num: int, seed: int) -> tuple[list[str], list[str]]:
    """Names of pairs with a false certificate, and of right pairs without a certificate."""
    false, missed = [], []
    for pair in pairs(num, seed):
        certificate = judge(pair)
        if certificate.certified and broken_claims(certificate, pair.layer, pair.truth, pair.fresh):
            false.append(pair.name)
        if pair.right and not certificate.certified:
            missed.append(f"{pair.name}\n{certificate}")
    return false, missed


def test_no_false_certificate_and_no_missed_one(seed: int) -> None:
    false, missed = honesty(18, seed)  # every kind of wrong layer once
    assert not false
    assert not missed, missed[0]


@pytest.mark.slow
def test_no_false_certificate_in_300_pairs(seed: int) -> None:
    false, missed = honesty(300, seed + 1000)
    assert not false
    assert len(missed) <= 1, missed


@pytest.fixture(scope="module")
def clean() -> Pair:
    return next(iter(pairs(1, seed=5)))


def test_claims_say_what_was_measured(clean: Pair) -> None:
    certificate = judge(clean)
    assert certificate.certified
    assert certificate.claim("C1").confidence == 1 - 1e-6
    assert certificate.claim("C1").value["fraction"] == pytest.approx(1 - np.log(1e6) / 750)
    assert certificate.claim("C2").value == clean.truth.num_heads
    assert distance(clean.layer, clean.truth).max <= certificate.claim("C3").value["bound"] < 1e-9


def test_a_target_that_is_missed_is_not_established(clean: Pair) -> None:
    fit, held = Batch(clean.x[:750], clean.y[:750]), Batch(clean.x[750:], clean.y[750:])
    moved = clean.layer.replace(w=clean.layer.w * (1 + 1e-6))
    certificate = certify(moved, held, fit, scale=example_scale(fit), target=1e-9)
    assert certificate.check("C1.error").status is Status.FAILS
    assert not certificate.certified


def test_retries_cost_confidence(clean: Pair) -> None:
    fit, held = Batch(clean.x[:750], clean.y[:750]), Batch(clean.x[750:], clean.y[750:])
    once, often = (certify(clean.layer, held, fit, scale=example_scale(fit), delta=1e-6 / j) for j in (1, 10))
    assert often.claim("C1").value["fraction"] < once.claim("C1").value["fraction"]


def test_an_error_where_the_jacobian_is_taken_counts(clean: Pair) -> None:
    """The bound is the error there over a singular value: outputs that the layer misses there make it larger."""
    held = Batch(clean.x[750:], clean.y[750:])
    noise = np.random.default_rng(0).standard_normal((750, *clean.y.shape[1:]))
    bounds = []
    for size in (0.0, 1e-6, 1e-3):
        fit = Batch(clean.x[:750], clean.y[:750] + size * noise)
        certificate = certify(clean.layer, held, fit, scale=example_scale(held))
        bounds.append(certificate.claim("C3").value["bound"])
    assert bounds[1] > 1e3 * bounds[0]
    # A bound that is enough for the claims is not made sharper, which takes at most a factor of two off it.
    assert 0.4e3 * bounds[1] <= bounds[2] <= 1.001e3 * bounds[1]


def test_groups_count_once(clean: Pair) -> None:
    held = Batch(clean.x, clean.y, groups=np.arange(len(clean.x)) // 10)
    errors = unit_errors(clean.layer, held, 1.0)
    assert len(errors) == len(clean.x) // 10
    single = unit_errors(clean.layer, dataclasses.replace(held, groups=None), 1.0)
    np.testing.assert_array_equal(errors, single.reshape(-1, 10).max(axis=1))


def test_support_makes_invisible_directions_harmless(rng) -> None:
    truth = AttentionLayer.random(2, 8, seed=3)
    basis = rng.standard_normal((8, 6))
    x = rng.standard_normal((1500, 4, 6)) @ basis.T
    outside = np.linalg.svd(basis)[0][:, -1]
    layer = truth.replace(theta=truth.theta + np.outer(outside, rng.standard_normal(8)))
    fit, held = Batch(x[:750], truth(x[:750])), Batch(x[750:], truth(x[750:]))
    assert not certify(layer, held, fit, scale=example_scale(fit)).certified
    support = Support(np.zeros(8), basis)
    certificate = certify(layer, held, fit, scale=example_scale(fit), support=support)
    assert certificate.certified, str(certificate)
    assert distance(layer, truth, support=support).max <= certificate.claim("C3").value["bound"]


def test_float32_is_certified_at_its_own_floor(rng) -> None:
    truth = AttentionLayer.random(2, 8, seed=3).astype(np.float32)
    x = rng.standard_normal((1500, 4, 8)).astype(np.float32)
    y = truth.astype(np.float64)(x.astype(np.float64)).astype(np.float32)
    fit, held = Batch(x[:750], y[:750]), Batch(x[750:], y[750:])
    floor = rounding_floor(truth, held, example_scale(fit))
    assert 1e-8 < floor < 1e-5
    assert certify(truth, held, fit, scale=example_scale(fit)).certified


def test_split_keeps_groups_together_and_sides_apart(seed: int) -> None:
    groups = np.random.default_rng(seed).integers(0, 50, 400)
    split = Split.make(400, groups=groups, seed=seed)
    sides = [set(groups[side]) for side in (split.fit, split.select, split.certify)]
    assert len(set.union(*sides)) == sum(map(len, sides))
    assert sorted(np.concatenate([split.fit, split.select, split.certify])) == list(range(400))
    with pytest.raises(ValueError, match="x: must hold at least 20 sequences"):
        Split.make(19)
    with pytest.raises(ValueError, match="groups: must have one entry per sequence"):
        Split.make(40, groups=np.zeros(3))


def test_no_bound_is_looked_for_where_the_outputs_are_not_explained(rng, monkeypatch) -> None:
    truth, found = (AttentionLayer.random(2, 4, seed=seed) for seed in (0, 1))
    x = rng.standard_normal((400, 5, 4))
    held, fitted = (Batch(part, truth(part)) for part in (x[:200], x[200:]))
    monkeypatch.setattr(
        "attnlearn.solve.certification._certify.parameter_bounds", None
    )  # would fail if it were called
    certificate = certify(found, held, fitted, scale=example_scale(fitted))
    assert not any(claim.established for claim in certificate.claims)
    assert certificate.check("C3.bound").status is Status.NOT_RUN
    assert "the outputs are not explained" in certificate.claim("C3").text
