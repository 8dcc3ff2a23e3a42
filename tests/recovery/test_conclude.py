"""The conclusion: one certificate of the best fit, and the figures that its outcome asks for."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn._certificate import Check, Status
from attnlearn.data import as_examples
from attnlearn.recovery._conclude import Units, conclude, named_by_residual
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._problem import Need, Problem, Weights
from attnlearn.recovery._trail import Trail
from attnlearn.solve._split import Split

from ._problems import made_fit, problem, signals, tokens

TRUTH = AttentionLayer.random(2, 6, seed=3, bias=True)


def concluded(whole: Problem, layer: AttentionLayer, verdict=Verdict.EXACT, needs=(), units=None, **options):
    fit = made_fit(
        verdict, weights=Weights.of(layer), examples=len(whole.split.fit), **options.pop("fit", {})
    )
    trail = Trail(signals=signals(whole), fits=(fit,), needs=dict(needs))
    return conclude(whole, trail, Units(None) if units is None else units, **options)


@pytest.fixture
def whole(rng):
    return problem(TRUTH, tokens(rng, "normal", 1_500, 4, 6))


def test_the_truth_is_certified(whole):
    found = concluded(whole, TRUTH)
    assert found.outcome is Outcome.RECOVERED
    assert found.certificate.certified
    assert found.stats["select_error"] <= found.stats["rounding_floor"]
    assert found.stats["unknowns"] == 2 * (36 + 6 + 36) + 6
    assert "examples_needed" not in found.stats


def test_a_check_that_the_method_adds_is_one_that_claims_rest_on(whole):
    failing = Check("S1.body", Status.FAILS, 3.0, 0.0)
    found = concluded(whole, TRUTH, extra=failing)
    assert found.certificate.check("S1.body") is failing
    assert found.certificate.claim("C1").established
    assert not found.certificate.claim("C2").established
    assert found.outcome is not Outcome.RECOVERED


def test_noise_has_standard_errors(rng):
    x = tokens(rng, "normal", 1_500, 4, 6)
    y = TRUTH(x)
    y = y + 1e-3 * y.std() * rng.standard_normal(y.shape)
    noisy = Problem(as_examples(x, y), Split.make(len(x)))
    found = concluded(noisy, TRUTH, Verdict.NOISE)
    assert found.outcome is Outcome.RECOVERED
    assert found.certificate.claim("C1").value["error"] < 0.05
    errors = found.stats["standard_errors"]
    assert errors["noise"] == pytest.approx(1e-3 * y.std(), rel=0.1)
    assert len(errors["theta"]) == len(errors["w"]) == 2
    assert errors["examples"] == len(noisy.split.fit)


def test_an_accuracy_that_the_noise_does_not_allow_is_said_so(rng):
    x = tokens(rng, "normal", 1_500, 4, 6)
    y = TRUTH(x)
    y = y + 0.3 * y.std() * rng.standard_normal(y.shape)
    noisy = Problem(as_examples(x, y), Split.make(len(x)), accuracy=0.01)
    found = concluded(noisy, TRUTH, Verdict.NOISE)
    assert found.outcome is Outcome.BELOW_NOISE_FLOOR
    assert found.stats["influence"]["carried_by"] > 100
    assert len(found.stats["influence"]["worst"]) == 5


def test_outputs_that_are_exact_to_float32_are_certified_to_float32(rng):
    """Models often compute their softmax in float32, whatever their dtype."""
    x = tokens(rng, "normal", 1_500, 4, 6)
    y = TRUTH.astype(np.float32)(x.astype(np.float32)).astype(np.float64)
    whole = Problem(as_examples(x, y), Split.make(len(x)))
    found = concluded(whole, TRUTH, Verdict.EXACT, fit={"precision": "float32"})
    assert found.outcome is Outcome.RECOVERED
    assert found.stats["precision"] == "float32"
    assert concluded(whole, TRUTH, Verdict.EXACT).outcome is not Outcome.RECOVERED


def test_the_residual_names_a_cause_that_the_data_do_not():
    assert named_by_residual("scores")["diagnosis"]["cause"] == "soft cap"
    assert named_by_residual("products") == {} == named_by_residual(None)


def test_a_misfit_carries_what_the_diagnosis_found(whole):
    cause = Need(Outcome.NOT_ATTENTION, cause="residual", evidence={"diagnosis": {"cause": "residual"}})
    other = AttentionLayer.random(2, 6, seed=4)
    found = concluded(whole, other, Verdict.MISFIT, needs={"cause of the misfit": cause})
    assert found.outcome is Outcome.NOT_ATTENTION
    assert found.stats["diagnosis"] == {"cause": "residual"}


def test_examples_needed_are_those_for_a_clear_view_of_a_misfit(whole):
    other = AttentionLayer.random(2, 6, seed=4)
    found = concluded(whole, other, Verdict.MISFIT, fit={"clear_view": 7_000})
    assert found.outcome is Outcome.TOO_FEW_EXAMPLES
    assert found.stats["examples_needed"] == 7_000


def test_examples_needed_are_those_that_the_certify_side_lacks(rng):
    few = problem(TRUTH, tokens(rng, "normal", 60, 4, 6))
    found = concluded(few, TRUTH)
    assert found.outcome is Outcome.TOO_FEW_EXAMPLES
    assert round(0.15 * found.stats["examples_needed"]) >= 28


def test_the_certify_side_counts_units_and_says_what_they_are(whole):
    groups = np.arange(whole.examples.num) // 5
    split = Split.make(whole.examples.num, groups=groups)
    grouped = Problem(whole.examples, split)
    found = concluded(grouped, TRUTH, units=Units(groups, "group", ", in March"))
    claim = found.certificate.claim("C1")
    assert claim.value["examples"] == len(np.unique(groups[split.certify]))
    assert "in March" in claim.text
    assert "group" in claim.text
