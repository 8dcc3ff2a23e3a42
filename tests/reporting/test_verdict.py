"""The verdict never says more than the certificate, whatever the outcome."""

from __future__ import annotations

import dataclasses

import pytest

from attnlearn import Claim, Outcome, Solution
from attnlearn.reporting import verdict
from attnlearn.reporting._verdict import REASONS
from tests.reporting.conftest import C1, C2, C3, made_up

ENDED_WELL = {"RECOVERED", "TRAINED", "COMPRESSED"}


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_verdict_without_a_layer(outcome: Outcome) -> None:
    found = verdict(Solution.failed(outcome).to_json())
    assert found.tone == "bad"
    assert REASONS[outcome.name] in found.sentence
    assert found.sentence.startswith("No ")
    assert found.remedy == outcome.remedy


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("missing", ["C1", "C2", "C3"])
def test_what_is_not_established_is_named(outcome: Outcome, missing: str) -> None:
    claims = tuple(dataclasses.replace(c, established=c.code != missing) for c in (C1, C2, C3))
    found = verdict(made_up(outcome, claims=claims).to_json())
    assert found.tone == "partial"
    assert "not certified" in found.sentence
    assert "recovered" not in found.sentence
    (named,) = found.missing
    assert f"({missing})" in named


@pytest.mark.parametrize("outcome", Outcome)
def test_certified_is_said_only_of_runs_that_ended_well(outcome: Outcome) -> None:
    found = verdict(made_up(outcome).to_json())
    assert found.badge.startswith("Certified") == (outcome.name in ENDED_WELL)
    assert (found.tone == "good") == (outcome.name in ENDED_WELL)


def test_a_file_that_calls_itself_certified_needs_its_claims() -> None:
    document = made_up(claims=(C1, Claim("C2", "3 heads", False), C3)).to_json() | {"certified": True}
    assert verdict(document).badge == "Not certified"
    empty = made_up(claims=()).to_json() | {"certified": True}
    assert verdict(empty).badge == "Not certified"


def test_the_verdicts_of_real_runs(results) -> None:
    assert verdict(results["recovered"]).sentence.startswith("All 2 heads of the layer were recovered: ")
    assert "remaining" in verdict(results["recovered"]).scope
    assert verdict(results["extracted"]).badge == "Certified"
    assert "noise" in verdict(results["noisy"]).sentence
    assert "subtract X from Y" in verdict(results["residual"]).remedy
    trained = verdict(results["trained"])
    assert "for this very run" in trained.sentence
    assert "held-out" in trained.scope
    assert trained.sentence.index("on new examples its error is between") < trained.sentence.index(
        "training loss"
    )


@pytest.mark.parametrize(("error", "tone"), [(1e-6, "good"), (0.5, "partial")])
def test_a_large_error_is_not_made_good_by_being_established(error: float, tone: str) -> None:
    claim = dataclasses.replace(C1, value={"error": error, "fraction": 0.99, "examples": 600})
    found = verdict(made_up(Outcome.COMPRESSED, claims=(claim,), source_heads=8).to_json())
    assert found.tone == tone
    assert found.badge == "Certified error"
    assert "3 heads instead of 8" in found.sentence
