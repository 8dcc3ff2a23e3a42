"""The verdict never says more than the certificate, whatever the outcome."""

from __future__ import annotations

import dataclasses

import pytest

from attnlearn import Certificate, Check, Claim, NotEstablished, Outcome, Solution
from attnlearn._verdict import verdict
from tests.reporting.conftest import C1, C2, C3, made_up

ENDED_WELL = {"RECOVERED", "TRAINED", "COMPRESSED", "CERTIFIED"}


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_verdict_without_a_layer(outcome: Outcome) -> None:
    found = verdict(Solution.failed(outcome).to_json())
    assert found.tone == "bad"
    told = Outcome.NOT_ESTABLISHED if outcome.ended_well else outcome
    assert told.reason in found.sentence
    assert found.sentence.startswith("No ")
    assert found.remedy == told.remedy


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("missing", ["C1", "C2", "C3"])
def test_what_is_not_established_is_named(outcome: Outcome, missing: str) -> None:
    claims = tuple(dataclasses.replace(c, established=c.code != missing) for c in (C1, C2, C3))
    found = verdict(made_up(outcome, claims=claims).to_json())
    on_target = outcome is Outcome.ON_TARGET
    assert found.tone == ("good" if on_target else "partial")
    assert found.badge == ("On target" if on_target else "Not certified")
    assert ("not certified" in found.sentence) is not on_target
    assert "recovered" not in found.sentence
    (named,) = found.missing
    assert f"({missing})" in named


@pytest.mark.parametrize("outcome", Outcome)
def test_certified_is_said_only_of_runs_that_ended_well(outcome: Outcome) -> None:
    found = verdict(made_up(outcome).to_json())
    assert found.badge.startswith("Certified") == (outcome.name in ENDED_WELL)
    assert (found.tone == "good") == (outcome.name in {*ENDED_WELL, "ON_TARGET"})


def test_a_file_that_calls_itself_certified_needs_its_claims() -> None:
    document = made_up(claims=(C1, Claim("C2", "3 heads", False), C3)).to_json() | {"certified": True}
    assert verdict(document).badge == "Not certified"
    empty = made_up(claims=()).to_json() | {"certified": True}
    assert verdict(empty).badge == "Not certified"


@pytest.mark.parametrize(("error", "tone"), [(1e-6, "good"), (0.5, "partial")])
def test_a_large_error_is_not_made_good_by_being_established(error: float, tone: str) -> None:
    claim = dataclasses.replace(C1, value={"error": error, "fraction": 0.99, "examples": 600})
    found = verdict(made_up(Outcome.COMPRESSED, claims=(claim,), source_heads=8).to_json())
    assert found.tone == tone
    assert found.badge == "Certified error"
    assert "3 heads instead of 8" in found.sentence


def test_a_target_that_is_met_is_success_with_the_figures_of_its_claim() -> None:
    claims = (C1, *(dataclasses.replace(c, established=False) for c in (C2, C3)))
    met = made_up(Outcome.ON_TARGET, claims=claims)
    assert met.achieved
    assert not met.certified
    assert (
        "as close as was asked for: its outputs are right to 1.0 × 10⁻¹⁵ on at least 99.00 %" in met.verdict
    )
    none = made_up(
        Outcome.ON_TARGET, claims=tuple(dataclasses.replace(c, established=False) for c in (C1, C2))
    )
    assert not none.achieved
    assert verdict(none.to_json()).badge == "Not certified"


@pytest.mark.parametrize(
    ("outcome", "stats", "words"),
    [
        (
            Outcome.ORACLE_FAILED,
            {"error": "no answer within 5 s"},
            "answering properly (no answer within 5 s)",
        ),
        (
            Outcome.TOO_FEW_EXAMPLES,
            {"examples_needed": 4100},
            "What to do: give about 4,100 examples in all",
        ),
        (
            Outcome.TOO_MANY_HEADS,
            {"condition": "m (k - 1) <= d_out", "left": 9.0, "right": 6.0},
            "(the condition m (k - 1) <= d_out is broken: 9 against 6)",
        ),
    ],
)
def test_the_cause_that_a_run_knows_is_said_everywhere(outcome: Outcome, stats, words: str) -> None:
    solution = Solution.failed(outcome, **stats)
    assert words in solution.verdict
    assert words in str(NotEstablished(solution))
    assert words in " ".join(str(solution).split())
    assert solution.to_json()["verdict"] == solution.verdict


def test_the_error_and_the_failing_check_are_said_with_their_figures() -> None:
    checks = (Check.compare("C3.count", 2.0, 3.0, text="heads that count", at_most=False),)
    solution = dataclasses.replace(
        made_up(Outcome.NOT_ESTABLISHED, claims=(dataclasses.replace(C3, established=False),)),
        certificate=Certificate((dataclasses.replace(C3, established=False),), checks),
        stats={"select_error": 1e-3},
    )
    assert "The first check that fails is C3.count: heads that count 2, wanted ≥ 3." in solution.verdict
    assert "typical error on examples that were not fitted is 0.001 of an output's norm" in solution.verdict
    assert "heads that count 2 (wanted >= 3)" in str(solution)
