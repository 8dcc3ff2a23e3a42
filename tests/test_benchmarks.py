"""What is published from benchmark lines: every row says what it rests on, nothing is hidden, a fallen ratio is loud."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnlearn import AttentionLayer, CompressConfig, compress, data
from benchmarks import honesty
from benchmarks.least_error import least_error
from benchmarks.recover import BASE, D32
from benchmarks.render import _suites, rendered
from benchmarks.render._lines import read
from benchmarks.render._ratios import fallen, kept

ORIGIN = {"commit": "abc1234+", "date": "2026-01-02", "cpus": 2, "machine": "x86_64", "versions": {}}
RECOVERED = {
    "seconds": 4.0,
    "outcome": "RECOVERED",
    "certified": True,
    "parameter_error": 1e-12,
    "fresh_error": 1e-14,
    "peak_gigabytes": 1.0,
}


def write(folder: Path, name: str, *lines: dict) -> None:
    text = "".join(json.dumps({"suite": "recover", **ORIGIN, **line}) + "\n" for line in lines)
    (folder / name).write_text(text)


def adam(over_ours: float | None) -> dict:
    """One student that takes so many times our seconds, and one that does not get there."""
    case = BASE | D32 | {"rival": True}
    ratios = {"over_ours": {"whole": over_ours, "compiled": over_ours}} if over_ours else {}
    students = {"heads": {"reached": False}, "heads and rank": {"reached": bool(over_ours)} | ratios}
    ours = {"whole": 4.0, "compiled": 2.0, "reached": True}
    return {"case": case, "result": RECOVERED | {"target": ours, "students": students}}


def test_nothing_run_is_shown_as_not_run(tmp_path: Path) -> None:
    files = rendered(tmp_path)
    document = files["docs/benchmarks.md"]
    assert "certifier alone: false certificates | not run" in document
    assert document.count("**Not run**") >= 5
    assert "fell by more" not in document
    assert files["README.md"].count("not run |") >= 6
    assert "\n| 0" not in document


def test_rows_say_how_many_cases_they_rest_on(tmp_path: Path) -> None:
    case = BASE | D32
    failed = RECOVERED | {"outcome": "NOT_ESTABLISHED", "certified": False, "parameter_error": 1e-3}
    write(
        tmp_path,
        "full-recover.jsonl",
        {"case": case | {"seed": 0}, "result": RECOVERED},
        {"case": case | {"seed": 1}, "result": failed},
        {"case": case | {"seed": 2}, "failed": "MemoryError: too large"},
    )
    suite = read("recover", tmp_path)
    (row,) = [line for line in _suites.recover(suite).splitlines() if "2 of 20, 1 failed" in line]
    assert "| 1/2 |" in row
    assert "RECOVERED 1, NOT_ESTABLISHED 1" in row
    assert "(1.0e-03)" in row  # the worst error is shown, not only the median
    assert suite.run == 2
    assert "commits `abc1234`" in suite.origin()


def test_the_last_line_of_a_case_counts_and_full_wins(tmp_path: Path) -> None:
    case = BASE | D32
    write(tmp_path, "bench-recover.jsonl", {"case": case, "result": RECOVERED | {"seconds": 99.0}})
    write(tmp_path, "quick-recover.jsonl", {"case": case, "result": RECOVERED | {"seconds": 77.0}})
    lines = [{"case": case, "result": RECOVERED | {"seconds": seconds}} for seconds in (8.0, 5.0)]
    write(tmp_path, "full-recover.jsonl", *lines)
    (row,) = [row for row in read("recover", tmp_path).rows if row.results]
    assert row.values("seconds") == [5.0]


def test_a_rival_that_does_not_get_there_is_no_ratio(tmp_path: Path) -> None:
    write(tmp_path, "full-recover.jsonl", adam(None))
    (row,) = [
        line for line in _suites.against_adam(read("recover", tmp_path)).splitlines() if "1 of 3" in line
    ]
    assert row.endswith("| 0/1 | – | – | 0/1 | – | – |")


@pytest.mark.parametrize(("now", "loud"), [(5.0, False), (2.1, False), (1.9, True)])
def test_a_ratio_that_fell_by_more_than_a_third_is_loud(now: float, loud: bool, tmp_path: Path) -> None:
    write(tmp_path, "full-recover.jsonl", adam(3.0))
    first = rendered(tmp_path)
    (tmp_path / "published.json").write_text(first["benchmarks/results/published.json"])
    write(tmp_path, "full-recover.jsonl", adam(now))
    second = rendered(tmp_path)
    assert ("**A ratio fell by more than a third.**" in second["docs/benchmarks.md"]) == loud
    (kept_value,) = json.loads(second["benchmarks/results/published.json"]).values()
    assert kept_value == (3.0 if loud else now)  # a fallen ratio stays loud until it is mended


def test_what_fell_keeps_its_old_value() -> None:
    assert fallen({"a": 1.0, "new": 1.0}, {"a": 2.0, "gone": 9.0}) == ["a: 1 ×, was 2 ×"]
    assert kept({"a": 1.0, "new": 1.0}, {"a": 2.0, "gone": 9.0}) == {"a": 2.0, "gone": 9.0, "new": 1.0}


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_no_compressed_layer_is_below_the_least_error(seed: int, heads: int) -> None:
    layer = AttentionLayer.random(4, 24, rank=6, bias=True, seed=seed)
    bound = least_error(layer, 5, heads, queries=40, seed=seed)
    config = CompressConfig(num_examples=3_000, down_to=heads)
    found = compress(layer, data.Gaussian(5, 24), num_heads=heads, config=config, seed=seed)
    assert 0.05 < bound < found.stats["relative_error"]


def test_redundant_heads_need_not_cost_anything(seed: int) -> None:
    layer = AttentionLayer.random(4, 24, rank=6, seed=seed)
    twice = layer.replace(theta=layer.theta[[0, 1, 0, 1]])
    assert least_error(twice, 5, 2, queries=10, seed=seed) < 1e-6
    assert least_error(twice, 5, 1, queries=40, seed=seed) > 0.1


def test_the_hostile_suite_is_large_and_keeps_the_keys_of_old() -> None:
    cases = honesty.cases("full")
    problems = [case for case in cases if case["kind"] == "problem"]
    keys = {json.dumps(case, sort_keys=True) for case in cases}
    assert len(keys) == len(cases)
    assert len(problems) >= 1000
    assert len({case["family"] for case in problems}) >= 40
    assert {"kind": "problem", "family": "parity", "seed": 991} in cases
    assert {"kind": "problem", "family": "noise on recorded-like tokens", "seed": 2} in cases
    assert {honesty.part(case) for case in honesty.cases("quick")} == set(honesty.PARTS)


def test_false_claims_of_uncertified_runs_and_early_refusals_count() -> None:
    plain = {"certified": False, "broken": [], "false": False, "truly_right": False, "identifiable": True}
    plain |= {"outcome_right": True}
    results = [plain | {"broken": ["C1"]}, plain | {"certified": True}, plain | {"identifiable": False}]
    figures = {name: (hits, total) for name, hits, total in honesty.figures(results)}
    assert figures["false claims"] == (1, 3)
    assert figures["false certificates"] == (0, 3)
    assert figures["power"] == (1, 2)
    lines = [{"case": {"kind": "problem", "family": "upsampled", "seed": 0}, "result": results[0]}]
    assert "false: upsampled 1 (C1)" in honesty.summary(lines)


@pytest.mark.parametrize("family", ["antipodal", "oracle: layer", "compress"])
def test_every_verb_gives_a_line(family: str) -> None:
    result = honesty.run({"kind": "problem", "family": family, "seed": 0})
    assert {"outcome", "certified", "identifiable", "broken", "seconds"} <= set(result)
    assert result["identifiable"] == (family == "oracle: layer")


@pytest.mark.parametrize("name", ["sapiens-vh-layer0", "rxnmapper-layer"])
def test_closed_forms_lose_nothing_where_nothing_is_left_out(name: str) -> None:
    from attnlearn import load
    from benchmarks.compress import LAYERS
    from benchmarks.rivals.closed_forms import narrowed, own_weights, pooled

    layer = load(LAYERS / f"{name}.safetensors")
    own = own_weights(LAYERS / f"{name}.safetensors", layer.num_heads)
    x = np.random.default_rng(0).standard_normal((200, 4, layer.dim)).astype(layer.dtype)
    whole = narrowed(layer, x, own.wq.shape[2]) | pooled(own, layer.num_heads, layer.dtype)
    for rival in whole.values():
        np.testing.assert_allclose(rival(x), layer(x), atol=2e-4)
    # Heads that have equal keys and values up to a rotation: alignment undoes it, and averaging alone does not.
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((own.wq.shape[2],) * 2))[0]
    twin = own._replace(
        **{part: np.repeat(getattr(own, part)[::2], 2, axis=0) for part in ("wk", "wv", "bk", "bv")}
    )
    exact = pooled(twin, layer.num_heads // 2, layer.dtype)["mean pooling"]
    for part, by in (("wk", turn), ("wq", turn), ("bq", turn), ("wv", turn), ("bv", turn)):
        getattr(twin, part)[1::2] = getattr(twin, part)[1::2] @ by
    twin.wo[1::2] = turn.T @ twin.wo[1::2]
    found = pooled(twin, layer.num_heads // 2, layer.dtype)
    np.testing.assert_allclose(found["procrustes"](x), exact(x), atol=2e-4)
    assert np.abs(found["mean pooling"](x) - exact(x)).max() > 0.01
