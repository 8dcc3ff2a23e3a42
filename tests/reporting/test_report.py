"""The file itself: self-contained, small, escaped whatever the data say, and refused when there is no result."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from attnlearn import (
    AttentionLayer,
    Certificate,
    Check,
    Claim,
    CompressConfig,
    Outcome,
    Phase,
    Solution,
    compress,
    data,
    report,
)
from attnlearn._serialize import schema
from attnlearn._verdict import verdict
from attnlearn.cli.__main__ import main
from attnlearn.reporting._render import script_json
from attnlearn.reporting._report import as_document
from tests.reporting.conftest import C1, made_up

HOSTILE = (
    '</script><script>alert("x")</script>',
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "<!-- <script>",
    "\u2028\u2029\x00]]>&amp;'\"`",
)


class Parsed(HTMLParser):
    """Tags and attributes as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.json, self.inside = "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script" and dict(attrs).get("type") == "application/json"

    def handle_endtag(self, tag) -> None:
        self.inside = False

    def handle_data(self, data) -> None:
        self.json += data if self.inside else ""


def hostile_solution(text: str) -> Solution:
    base = made_up(
        reason=text, diagnosis={"cause": text, "evidence": [{"name": text, "evidence": 1.0, "text": text}]}
    )
    claims = (Claim(text, text, False, text),)
    phases = (*base.phases, Phase(text, 1.0, {text: text, "list": [text] * 3}))
    return Solution(base.layer, Outcome.NOT_ATTENTION, type(base.certificate)(claims), phases, base.stats)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_data_stays_text(text: str, tmp_path: Path) -> None:
    document = hostile_solution(text).to_json()
    document["layer"]["path"] = document["provenance"]["command"] = text
    parsed = Parsed(report(document, tmp_path / "report.html").read_text("utf-8"))
    assert sum(tag == "script" for tag, _ in parsed.tags) == 2
    assert not [tag for tag, _ in parsed.tags if tag in ("img", "iframe", "object", "link", "form")]
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    assert "49" not in json.loads(parsed.json)["provenance"]["command"]
    assert json.loads(parsed.json)["stats"]["reason"] == text


def test_json_in_a_script_says_the_same(tmp_path: Path) -> None:
    for text in HOSTILE:
        assert json.loads(script_json({text: [text]})) == {text: [text]}
        assert not re.search(r"[<>&\u2028\u2029]", script_json({text: [text]}))


@pytest.mark.parametrize("kind", ["recovered", "noisy", "residual", "extracted", "trained", "leak"])
def test_reports_need_nothing_else(results, kind: str, tmp_path: Path) -> None:
    path = report(results[kind], tmp_path / "report.html")
    text = path.read_text("utf-8")
    parsed = Parsed(text)
    assert path.stat().st_size < 5e6
    links = [
        value
        for _, attributes in parsed.tags
        for name, value in attributes.items()
        if name in ("href", "src", "action", "srcset", "data") and value
    ]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert "style" not in {name for _, attributes in parsed.tags for name in attributes}
    policy = next(a["content"] for tag, a in parsed.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert json.loads(parsed.json)["schema"] == results[kind]["schema"]


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_page(outcome: Outcome, tmp_path: Path) -> None:
    for solution in (made_up(outcome), Solution.failed(outcome)):
        text = report(solution, tmp_path / "report.html").read_text("utf-8")
        assert outcome.name in text


def test_bounds_that_are_infinite_are_no_numbers(tmp_path: Path) -> None:
    """An infinite bound is null in JSON: the page shows a dash, not an error."""
    claims = (
        C1,
        Claim("C3", "right to inf", False, {"bound": np.inf, "heads": [1e-9, np.inf], "biases": [np.inf]}),
    )
    checks = (Check.compare("C2.apart", 1.0, np.inf, at_most=False), Check.compare("C3.bound", np.inf, 0.01))
    base = made_up(Outcome.HEADS_INDISTINGUISHABLE, claims=claims)
    solution = Solution(base.layer, base.outcome, Certificate(claims, checks), base.phases, base.stats)
    text = report(solution, tmp_path / "report.html").read_text("utf-8")
    assert "bound not established" in text
    assert "Infinity" not in text


def test_many_heads_stay_below_the_limit(tmp_path: Path) -> None:
    solution = made_up(layer=AttentionLayer.random(64, 96, rank=8, seed=1), claims=())
    path = report(solution, tmp_path / "report.html")
    assert path.stat().st_size < 5e6
    text = path.read_text("utf-8")
    assert text.count('role="tabpanel"') == 48
    assert "16 further heads are in the JSON only" in text


def test_from_the_file_and_from_the_solution_it_is_the_same(tmp_path: Path) -> None:
    solution = made_up()
    document = solution.to_json()
    (tmp_path / "result.json").write_text(json.dumps(document))
    first = report(tmp_path / "result.json", tmp_path / "a.html").read_bytes()
    assert report(document, tmp_path / "b.html").read_bytes() == first


def test_other_results_are_shown_as_tables(tmp_path: Path) -> None:
    for name in ("reproduce", "conditions", "inspect"):
        document = {
            "schema": f"attnlearn/{name}",
            "version": 1,
            "claim": "x",
            "figures": {"bound": {"text": "t"}},
        }
        document |= {"checks": [], "advice": {"route": "spectral", "text": "take it", "routes": []}}
        assert "<h1>" in report(document, tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "path: must be a JSON result, as --json writes it, got result.json (not JSON)"),
        ("[1, 2]", "path: must be a JSON result of attnlearn"),
        ('{"schema": "somebody/else", "version": 1}', "path: must be a JSON result of attnlearn"),
        ('{"schema": "attnlearn/solution", "version": 99}', "path: must have version 1 or 2, got 99"),
        ('{"schema": "attnlearn/solution", "version": 1}', "path: must hold a whole result of schema"),
        (
            '{"schema": "attnlearn/leak", "version": 1, "rows": [{}]}',
            "path: must hold a whole result of schema",
        ),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(content: str, message: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        report(tmp_path / "result.json", tmp_path / "report.html")
    assert main(["report", str(tmp_path / "result.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_the_command_writes_beside_the_result(tmp_path: Path, capsys) -> None:
    made_up().save_json(tmp_path / "result.json")
    assert main(["report", str(tmp_path / "result.json")]) == 0
    assert (tmp_path / "result.html").is_file()
    assert main(["report", str(tmp_path / "result.json"), "-o", str(tmp_path / "out.html")]) == 0
    assert (tmp_path / "out.html").read_bytes() == (tmp_path / "result.html").read_bytes()
    assert main(["report", str(tmp_path / "nowhere.json")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_the_option_of_long_commands(tmp_path: Path, capsys) -> None:
    AttentionLayer.random(2, 4, seed=1).save(tmp_path / "layer.safetensors")
    oracle = ["--oracle", str(tmp_path / "layer.safetensors"), "--dim", "4"]
    assert main(["leak", *oracle, "--report", str(tmp_path / "leak.html"), "--quiet"]) == 0
    assert "give the layer away" in (tmp_path / "leak.html").read_text("utf-8")
    assert main(["extract", *oracle, "--report", str(tmp_path / "no" / "folder.html")]) == 2
    assert "report: cannot write " in capsys.readouterr().err
    np.savez(tmp_path / "bad.npz", x=np.ones((2, 2, 2)), y=np.ones(2))
    assert main(["train", str(tmp_path / "bad.npz"), "--report", str(tmp_path / "t.html")]) in (2, 3)


def test_the_verdicts_of_real_runs(results) -> None:
    assert verdict(results["recovered"]).sentence.startswith("Both heads of the layer were recovered: ")
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


def test_results_of_version_1_are_read(results, tmp_path: Path) -> None:
    old = copy.deepcopy(results["recovered"]) | {"version": 1}
    for name in ("achieved", "verdict"):
        del old[name]
    directions = [check.pop("direction") for check in old["certificate"]["checks"]]
    old["stats"]["tokens"] = old["stats"].pop("sequence_length")
    new = as_document(old)
    jsonschema.validate(new, schema())
    assert new["stats"] == results["recovered"]["stats"]
    assert new["verdict"] == results["recovered"]["verdict"]
    told = [check["direction"] for check in new["certificate"]["checks"]]
    known = [(a, b) for a, b in zip(told, directions, strict=True) if a is not None]
    assert len(known) >= 5
    assert all(a == b for a, b in known)
    (tmp_path / "old.json").write_text(json.dumps(old))
    page = report(tmp_path / "old.json", tmp_path / "old.html").read_text("utf-8")
    assert ">Certified<" in page
    with pytest.raises(ValueError, match="path: must have version 1 or 2, got 3"):
        as_document(old | {"version": 3})


def test_every_key_of_stats_is_documented(results) -> None:
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text("utf-8")
    known = set(re.findall(r"`([a-z_]+)`", text[text.index("## `stats`") :]))
    written = {key for result in results.values() for key in result.get("stats", {})}
    config = CompressConfig(steps=1, num_examples=300)
    written |= set(
        compress(AttentionLayer.random(2, 4), data.Gaussian(3, 4), num_heads=1, config=config).stats
    )
    assert len(written) > 30
    assert not written - known
