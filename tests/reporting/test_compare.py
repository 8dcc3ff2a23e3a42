"""Two results side by side, and an answer beside the truth."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, Solution, report
from attnlearn.cli.__main__ import main
from attnlearn.reporting._compare import comparison_page
from attnlearn.reporting._page import solution_page
from attnlearn.reporting._render import timeline
from attnlearn.reporting._truth import beside_truth
from tests.reporting.conftest import made_up


def test_heads_that_belong_together_are_found() -> None:
    layer = AttentionLayer.random(3, 6, seed=1)
    order = [2, 0, 1]
    moved = layer.replace(theta=layer.theta[order], w=layer.w[order], query_bias=layer.query_bias[order])
    page = comparison_page(made_up(layer=layer).to_json(), made_up(layer=moved).to_json())
    heads = next(section for section in page.sections if section.title == "Heads that belong together")
    assert dict(heads.facts) == {
        "head 2 of A": "head 0 of B, cosine 1.0000",
        "head 0 of A": "head 1 of B, cosine 1.0000",
        "head 1 of A": "head 2 of B, cosine 1.0000",
    }


def test_the_command_takes_two_results(tmp_path: Path, capsys) -> None:
    made_up().save_json(tmp_path / "a.json")
    Solution.failed(Outcome.SATURATED).save_json(tmp_path / "b.json")
    words = ["report", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "-o", str(tmp_path / "both.html")]
    assert main(words) == 0
    text = (tmp_path / "both.html").read_text("utf-8")
    assert "A: certified and B: nothing learned" in text
    assert "attention is nearly one-hot" in text
    (tmp_path / "leak.json").write_text(json.dumps({"schema": "attnlearn/leak", "version": 1, "rows": []}))
    assert main(["report", str(tmp_path / "a.json"), str(tmp_path / "leak.json")]) == 2
    assert "beside: must both be solutions" in capsys.readouterr().err


def test_the_truth_is_compared_head_by_head(tmp_path: Path, seed: int) -> None:
    truth = AttentionLayer.random(3, 6, bias=True, seed=seed)
    noise = 1e-3 * np.random.default_rng(seed).standard_normal(truth.theta.shape)
    found = truth.replace(
        theta=(truth.theta + noise)[::-1], w=truth.w[::-1], query_bias=truth.query_bias[::-1]
    )
    told = beside_truth(found, truth)
    assert 1e-4 < told["theta"] < 1e-2
    assert told["w"] < 1e-12
    points = np.array(told["points"]["theta"])
    assert np.abs(points[:, 0] - points[:, 1]).max() < 0.01
    solution = made_up(layer=found)
    text = report(solution, tmp_path / "r.html", truth=truth).read_text("utf-8")
    assert "Found against true" in text
    found.save(tmp_path / "layer.safetensors")
    truth.save(tmp_path / "truth.safetensors")
    solution.save_json(tmp_path / "result.json", tmp_path / "layer.safetensors")
    assert (
        main(["report", str(tmp_path / "result.json"), "--truth", str(tmp_path / "truth.safetensors")]) == 0
    )
    assert "Found against true" in (tmp_path / "result.html").read_text("utf-8")
    solution.save_json(tmp_path / "without.json")
    with pytest.raises(ValueError, match="must name its weights"):
        report(tmp_path / "without.json", tmp_path / "r.html", truth=truth)


def test_premises_of_training_stand_apart_from_the_checks_of_the_verdict(results) -> None:
    page = solution_page(results["trained"])
    assert {row.code[0] for row in page.checks} == {"M", "R"}
    assert {row.code[0] for row in page.premises} == {"A", "G"}
    assert not solution_page(results["recovered"]).premises


def test_the_time_of_a_page_is_that_of_all_phases_certify_included(results) -> None:
    document = results["recovered"]
    names = [phase["name"] for phase in document["phases"]]
    assert names[-1] == "certify"
    page = solution_page(document)
    shown = [phase for phase in page.phases if not phase.skipped]
    total = sum(phase["seconds"] for phase in document["phases"])
    assert sum(phase.seconds or 0 for phase in page.phases) == pytest.approx(total)
    widths = re.findall(r'x="[^"]*" width="([^"]*)"', timeline(page))
    assert sum(map(float, widths)) == pytest.approx(100, abs=0.01)
    assert [display.title for display in shown[-1].displays] == ["Errors on certify examples"]
    claim = document["certificate"]["claims"][0]["value"]
    assert sum(claim["histogram"]["counts"]) >= claim["examples"]
    assert claim["histogram"]["edges"][-1] == pytest.approx(claim["error"], rel=1e-3)
