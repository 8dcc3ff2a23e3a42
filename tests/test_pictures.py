"""The pages in pictures: verdicts follow the lines, also when they contradict a paper, and nothing is claimed of too few seeds."""

from __future__ import annotations

import pytest

from benchmarks import bounds
from benchmarks.render._chen_li import correlation, refined, tuples
from benchmarks.render._claims import judged, page
from benchmarks.render._deora import attention, heads, never_below
from benchmarks.render._lines import Suite


def suites(name: str, lines: list[tuple[dict, dict]]) -> dict[str, Suite]:
    made = [{"case": case, "result": result} for case, result in lines]
    return {"papers": Suite("papers", [], []), name: Suite(name, [], made)}


@pytest.mark.parametrize(("after", "verdict"), [(1e-5, "supported"), (0.2, "contradicted")])
def test_a_verdict_follows_the_lines(after, verdict):
    case = {"claim": "steps", "heads": 1, "variant": "paper"}
    lines = [(case | {"seed": s}, {"sum_error": 0.3, "refined_sum_error": after}) for s in range(5)]
    assert refined(suites("papers", lines)).verdict == verdict
    assert refined(suites("papers", lines[:4])).verdict == "open"


def test_claims_without_lines_are_open():
    for claim in (correlation, refined, tuples, attention):
        found = claim(suites("papers", []))
        assert (found.verdict, found.seeds) == ("open", 0)


def test_more_heads_that_take_more_steps_contradict_the_claim():
    rows = [
        {"heads": h, "common": {"steps_to_target": [h] * 5}, "sqrt": {"steps_to_target": [9 - h] * 5}}
        for h in (1, 4)
    ]
    made = suites("papers", [({"claim": "heads", "seed": 0}, {"target": 0.1, "rows": rows})])
    assert heads(made, "common").verdict == "contradicted"
    assert heads(made, "sqrt").verdict == "supported"


def test_one_bound_below_its_measurement_is_told():
    result = {"problems": 100, "below": {"beta1": 0, "beta2": 1}, "least_ratio": {}}
    found = never_below(suites("bounds", [({"seed": 0}, result)]))
    assert found.verdict == "contradicted"
    assert "beta2 1 of 100" in found.measured


def test_a_page_has_a_row_for_every_claim():
    made = suites("papers", [])
    text = page("Title", "Opening.", [correlation(made), refined(made)])
    assert text.count("| **open** |") == 2
    assert judged(False, 9) == "contradicted"


def test_the_counting_suite_sees_a_bound_that_is_too_small(monkeypatch):
    whole = bounds.run({"problems": 3, "seed": 1})
    assert set(whole["below"].values()) == {0}
    monkeypatch.setattr(bounds.bounds, "beta1", lambda rows, radius, norm: 1e-6)
    assert bounds.run({"problems": 3, "seed": 1})["below"]["beta1"] == 3
