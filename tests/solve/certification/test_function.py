"""Claim C1: the fraction it names holds as often as it says; copies and groups are no evidence; its words."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from attnlearn import AttentionLayer, Status
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve.certification._function import _allowed, function_claim, independent_units

SILENT = AttentionLayer(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
"""It answers zero, so the error of an output is its own norm."""


def held_of(errors: np.ndarray, **options) -> Batch:
    """Examples on which `SILENT` has these errors, relative to the scale 1 (with `small` = 1)."""
    y = np.asarray(errors, float)[:, None, None]
    return Batch(np.zeros_like(y), y, **options)


def claim_of(errors: np.ndarray, held: Batch | None = None, **options):
    options = {"limit": np.inf, "small": 1.0, **options}
    held = held_of(errors) if held is None else held
    return function_claim(SILENT, held, 1.0, **options)


@pytest.mark.parametrize("covered", [None, 0.9, 0.5])
@pytest.mark.parametrize("number", [40, 300])
def test_the_claimed_fraction_holds_as_often_as_it_says(covered, number, rng):
    """Errors are uniform on [0, 1]: the fraction of inputs with at most `eps` is eps itself."""
    delta, draws, wrong = 0.05, 1000, 0
    for _ in range(draws):
        claim, _ = claim_of(rng.random(number), delta=delta, covered=covered)
        wrong += claim.value["error"] < claim.value["fraction"]
    # Not wrong more often than delta, up to chance (one in a million); not so careful as to be useless either.
    assert wrong <= scipy.stats.binom.ppf(1 - 1e-6, draws, delta)
    assert wrong >= scipy.stats.binom.ppf(1e-6, draws, delta / 10)


def test_the_largest_error_is_claimed_for_all_but_a_known_share(rng):
    errors = rng.random(200)
    claim, _ = claim_of(errors, delta=1e-3)
    assert claim.value["error"] == errors.max()
    assert claim.value["fraction"] == pytest.approx(1 - np.log(1e3) / 200)
    assert claim.confidence == 1 - 1e-3


def test_less_is_asked_at_a_smaller_error(rng):
    errors = rng.random(300)
    claim, _ = claim_of(errors, delta=0.05, covered=0.9)
    assert claim.value["fraction"] == pytest.approx(0.9)
    above = int((errors > claim.value["error"]).sum())
    assert scipy.stats.binom.cdf(above, 300, 0.1) <= 0.05 < scipy.stats.binom.cdf(above + 1, 300, 0.1)


def test_too_few_inputs_for_an_order_statistic_leave_the_largest(rng):
    errors = rng.random(40)
    claim, _ = claim_of(errors, covered=0.9)  # at delta = 1e-6 it takes 132
    assert claim.value["error"] == errors.max()
    assert claim.value["fraction"] == pytest.approx(1 - np.log(1e6) / 40)


def test_copied_units_show_an_error_and_are_no_evidence(rng):
    for number, status in (
        (60, Status.HOLDS),
        (160, Status.FAILS),
    ):  # of 200: too many make the rest suspicious
        errors, copied = np.full(200, 0.1), np.arange(200) < number
        errors[0] = 0.7  # a copy
        claim, checks = claim_of(errors, held_of(errors, copied=copied))
        assert claim.value["examples"] == 200 - number
        assert claim.value["error"] == pytest.approx(0.7)
        assert claim.value["fraction"] == pytest.approx(1 - np.log(1e6) / (200 - number))
        by_code = {check.code: check for check in checks}
        assert by_code["C1.copies"].status is status
        assert by_code["C1.copies"].value == number
        assert claim.established <= (status is Status.HOLDS)


def test_units_whose_relatives_may_be_unseen_are_no_evidence():
    errors = np.full(200, 0.1)
    claim, checks = claim_of(errors, held_of(errors, hidden=0.25))
    assert claim.value["examples"] == 150
    assert claim.value["fraction"] == pytest.approx(1 - np.log(1e6) / 150)
    assert next(check for check in checks if check.code == "C1.copies").value == 0


def test_copied_units_are_no_evidence_for_an_order_statistic():
    errors, copied = np.linspace(0.01, 1.0, 400), np.arange(400) < 200  # copies have the small errors
    claim, _ = claim_of(errors, held_of(errors, copied=copied), delta=0.05, covered=0.5)
    alone, _ = claim_of(errors[200:], delta=0.05, covered=0.5)
    assert claim.value["error"] == alone.value["error"]


def test_nothing_is_established_if_all_are_copies():
    errors = np.zeros(100)
    claim, _ = claim_of(errors, held_of(errors, copied=np.ones(100, bool)))
    assert claim.value["examples"] == 0
    assert claim.value["fraction"] == 0.0
    assert not claim.established


def test_a_group_counts_once_with_its_worst_input(rng):
    errors, groups = rng.random(120), np.arange(120) // 4
    claim, _ = claim_of(errors, held_of(errors, groups=groups), unit="group", delta=0.05, covered=0.5)
    worst, _ = claim_of(errors.reshape(30, 4).max(axis=1), delta=0.05, covered=0.5)
    assert claim.value["examples"] == 30
    assert claim.value["error"] == worst.value["error"]
    assert "groups (the worst input of each)" in claim.text


def test_one_copy_spoils_its_group():
    copied = np.array([False, True, False, False])
    held = held_of(np.zeros(4), groups=np.array(["a", "a", "b", "b"]), copied=copied)
    assert independent_units(held).tolist() == [False, True]


def test_the_floor_is_in_the_text_and_in_the_scope():
    y = np.full((100, 1, 1), 5.0)
    claim, _ = function_claim(SILENT, Batch(np.zeros_like(y), y), 5.0, limit=2.0)
    assert f"of {5.0 * calibration.SMALL_ERROR:.3g} where the norm is smaller" in claim.text
    assert claim.value["floor"] == claim.scope["floor"] == 5.0 * calibration.SMALL_ERROR
    assert claim.value["error"] == pytest.approx(1.0)  # zero instead of the output
    other, _ = function_claim(SILENT, Batch(np.zeros_like(y), y), 5.0, limit=2.0, small=0.5)
    assert "of 2.5 where the norm is smaller" in other.text


def test_small_outputs_are_measured_against_the_floor():
    y = np.full((100, 1, 1), 1e-5)
    claim, _ = function_claim(SILENT, Batch(np.zeros_like(y), y), 1.0, limit=2.0)
    assert claim.value["error"] == pytest.approx(1e-5 / calibration.SMALL_ERROR)


@pytest.mark.parametrize("unit", ["input", "distinct input", "group"])
def test_what_is_assumed(unit):
    claim, _ = claim_of(np.zeros(100), unit=unit)
    assert claim.assumes == (f"the {unit}s are independent draws from one distribution",)
    drawn, _ = claim_of(np.zeros(100), unit=unit, drawn=True)
    assert drawn.assumes == ()


def test_established_at_the_limit_and_not_above_it():
    errors = np.full(100, 0.5)
    assert claim_of(errors, limit=0.5)[0].established
    assert not claim_of(errors, limit=0.49)[0].established
    few = int(np.ceil(np.log(1 / calibration.DELTA) / calibration.UNCOVERED))
    assert claim_of(errors[:few], limit=0.5)[0].established
    assert not claim_of(errors[: few - 1], limit=0.5)[0].established


def test_an_error_that_is_not_a_number_is_not_established():
    errors = np.full(100, 0.1)
    errors[3] = np.nan
    claim, _ = claim_of(errors, limit=1.0)
    assert not claim.established


def test_where_and_name_are_in_the_text():
    claim, _ = claim_of(np.zeros(100), where=" of two tokens", name="output error")
    assert claim.text.startswith("output error <= 0 ")
    assert "% of inputs of two tokens, provided that" in claim.text


@pytest.mark.parametrize(
    ("units", "covered", "delta"), [(2_000, 0.98, 1e-6), (500, 0.7, 1e-3), (20, 0.5, 0.05)]
)
def test_as_many_errors_may_lie_above_as_the_binomial_distribution_allows(units, covered, delta) -> None:
    above = _allowed(units, covered, delta)
    assert above is not None
    distribution = scipy.stats.binom(units, 1 - covered)
    assert distribution.cdf(above) <= delta < distribution.cdf(above + 1)
