"""Results: certificates count only what is established, and every JSON follows the shipped schema."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from attnlearn import (
    AttentionLayer,
    Certificate,
    Check,
    Claim,
    NotEstablished,
    Outcome,
    Phase,
    Solution,
    Status,
)
from attnlearn._serialize import schema

GOOD = Claim("C1", "small error", True, {"error": np.float64(1e-9)}, 1 - 1e-6)
BAD = Claim("C2", "8 heads", False)


@pytest.mark.parametrize(
    ("claims", "certified"), [((), False), ((GOOD,), True), ((GOOD, BAD), False), ((BAD,), False)]
)
def test_certified_means_every_claim(claims, certified: bool) -> None:
    assert Certificate(claims).certified is certified
    layer = AttentionLayer.random(1, 2)
    assert Solution(layer, Outcome.RECOVERED, Certificate(claims)).certified is certified
    assert Solution(layer, Outcome.BELOW_NOISE_FLOOR, Certificate(claims)).certified is False


@pytest.mark.parametrize(
    ("value", "threshold", "at_most", "status", "slack"),
    [
        (1.0, 2.0, True, Status.HOLDS, 2.0),
        (2.0, 1.0, True, Status.FAILS, 0.5),
        (3.0, 1.0, False, Status.HOLDS, 3.0),
        (0.0, 1.0, True, Status.HOLDS, np.inf),
        (np.nan, 1.0, True, Status.FAILS, np.nan),
        (np.nan, 1.0, False, Status.FAILS, np.nan),
    ],
)
def test_checks(value, threshold, at_most, status, slack) -> None:
    check = Check.compare("X", value, threshold, at_most=at_most)
    assert check.status is status
    np.testing.assert_equal(check.slack, slack)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_remedy_and_valid_json(outcome: Outcome, tmp_path) -> None:
    layer = AttentionLayer.random(2, 100, seed=1)
    layer.save(tmp_path / "layer.safetensors")
    solution = Solution(
        layer,
        outcome,
        Certificate((GOOD, BAD), (Check.compare("C1.error", np.inf, 1.0), Check("C3", Status.NOT_RUN))),
        (Phase("moment", 0.1, {"singular": np.arange(3.0), "bad": np.nan}),),
        {"path": tmp_path, "count": np.int64(3)},
    )
    assert outcome.reason
    assert outcome.remedy
    document = json.loads(json.dumps(solution.to_json(tmp_path / "layer.safetensors"), allow_nan=False))
    jsonschema.validate(document, schema())
    assert document["layer"]["path"] == "layer.safetensors"
    assert len(document["layer"]["summary"]["maps"][0]["theta"]) == 96
    assert str(solution).count("\n") < 24
    assert outcome.name in solution._repr_html_()
    jsonschema.validate(Solution.failed(outcome).to_json(), schema())


def test_the_error_carries_the_solution() -> None:
    solution = Solution.failed(Outcome.SATURATED)
    with pytest.raises(
        NotEstablished, match="SATURATED: No layer was learned: attention is nearly one-hot"
    ) as caught:
        raise NotEstablished(solution)
    assert caught.value.solution is solution


def test_the_direction_of_a_threshold_is_in_the_json() -> None:
    checks = [
        Check.compare("A", 1.0, 2.0),
        Check.compare("B", 1.0, 2.0, at_most=False),
        Check("C", Status.NOT_RUN),
    ]
    assert [check.to_json()["direction"] for check in checks] == ["ceiling", "floor", None]


def test_a_target_that_is_met_is_achieved_and_not_certified() -> None:
    layer = AttentionLayer.random(1, 2)
    for outcome in Outcome:
        found = Solution(layer, outcome, Certificate((GOOD, BAD)))
        assert found.achieved is (outcome is Outcome.ON_TARGET)
        assert not found.certified
        everything = Solution(layer, outcome, Certificate((GOOD,)))
        assert everything.achieved is (everything.certified or outcome is Outcome.ON_TARGET)
        assert not Solution(layer, outcome, Certificate((BAD,))).achieved


def test_frames() -> None:
    certificate = Certificate((GOOD,), (Check.compare("C1.error", 1.0, 2.0, unit="relative"),))
    assert certificate.frame()["status"].tolist() == ["holds"]
    assert Solution(None, Outcome.RECOVERED, certificate, (Phase("a", 1.0, {"b": 2}),)).frame()[
        "b"
    ].tolist() == [2]


def test_the_text_fits_one_screen_whatever_happened() -> None:
    checks = tuple(Check.compare(f"X{i}", 2.0, 1.0, text="a long explanation " * 30) for i in range(60))
    claims = tuple(Claim(f"C{i}", "claim " * 200, False) for i in range(40))
    phases = tuple(Phase(f"phase {i}", 1.0) for i in range(60))
    text = str(Solution(None, Outcome.NOT_ESTABLISHED, Certificate(claims, checks), phases))
    lines = text.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 110
    assert "and 54 more checks fail" in text
    assert "and 34 more claims" in text


def test_a_check_without_figures_can_fail_in_words() -> None:
    solution = Solution(None, Outcome.NOT_ESTABLISHED, Certificate((BAD,), (Check("C2", Status.FAILS),)))
    assert "fails  C2" in str(solution)


def test_a_name_that_a_result_does_not_have_is_refused_with_those_it_has() -> None:
    solution = Solution.failed(Outcome.INTERRUPTED)
    certificate = Certificate(
        (Claim("C1", "small error", established=True),), (Check("C1.error", Status.HOLDS),)
    )
    for ask, known in (
        (lambda: certificate.claim("C7"), "C1"),
        (lambda: certificate.check("C7.error"), "C1.error"),
        (lambda: solution.phase("fit"), "none"),
    ):
        with pytest.raises(KeyError, match=f"there are: {known}"):
            ask()
