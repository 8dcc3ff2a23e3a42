"""Conditions: each number against an independent computation, and the advice on layers that anybody can judge."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from attnlearn import AttentionLayer, Status, conditions, data, hard, recover
from attnlearn.cli.__main__ import main
from attnlearn.diagnosis._advice import Advice, RouteAdvice
from attnlearn.diagnosis._gap import Gap, data_gap, layer_gap, problem_of, tools_of
from attnlearn.diagnosis._judge import beyond_search
from attnlearn.diagnosis._needs import agreeing_rows, query_count, spectral_examples
from attnlearn.diagnosis._weights import weight_checks
from attnlearn.recovery._signals import measure
from attnlearn.solve._rank import joint_rank


def by_code(checks) -> dict[str, float]:
    return {check.code: check.value for check in checks}


def test_weights_are_measured_as_defined() -> None:
    theta = np.zeros((2, 3, 3))
    theta[0], theta[1] = np.diag([2.0, 1.0, 1.0]), np.diag([0.0, 3.0, 0.0])
    w = np.stack([np.diag([1.0, 1.0, 1.0]), np.diag([0.5, 0.25, 0.0])])
    found = by_code(weight_checks(AttentionLayer(theta, w)))
    assert found["theta.effective_rank"] == pytest.approx(1.0)
    assert found["theta.balance"] == pytest.approx(3 / np.sqrt(6))
    assert found["theta.incoherence"] == pytest.approx(3 / (3 * np.sqrt(6)))
    assert found["theta.independence"] == pytest.approx(np.sqrt(1 - 1 / np.sqrt(6)))
    assert found["w.effective_rank"] == pytest.approx(1.25)
    assert found["w.condition"] == pytest.approx(2.0)
    assert found["w.balance"] == pytest.approx(np.sqrt(3 / 0.3125))
    assert found["w.independence"] == pytest.approx(np.sqrt(1 - 0.75 / np.sqrt(3 * 0.3125)))
    assert found["sum.condition"] == pytest.approx(1.5)
    assert found["sum.cancellation"] == pytest.approx(1.0)


def test_projections_of_low_rank_do_not_cancel_by_that(seed: int) -> None:
    """Two heads whose W have rank 2 in eight dimensions: their sum has rank 4 unless they cancel."""
    layer = AttentionLayer.random(2, 8, rank=2, seed=seed)
    assert joint_rank(layer.w) == 4
    assert by_code(weight_checks(layer))["sum.cancellation"] > 0.01
    opposite = layer.replace(w=np.stack([layer.w[0], 1e-4 * layer.w[1] - layer.w[0]]))
    assert by_code(weight_checks(opposite))["sum.cancellation"] < 1e-3


@pytest.mark.parametrize("kind", ["close-heads", "cancelling-projections", "rank-one", "tiny-head"])
def test_a_broken_condition_fails_its_check(kind: str, seed: int) -> None:
    code = {
        "close-heads": "theta.incoherence",
        "cancelling-projections": "sum.cancellation",
        "rank-one": "theta.effective_rank",
        "tiny-head": "w.balance",
    }[kind]
    layer = hard.near_degenerate(kind, 6, 3, distance=1e-3, seed=seed)
    found = {check.code: check.status for check in weight_checks(layer)}
    assert found[code] is Status.FAILS


@pytest.mark.parametrize(("tokens", "scale"), [("Gaussian", 0.5), ("Gaussian", 2.0), ("Boolean", 2.0)])
def test_computed_gap_is_the_measured_one(tokens: str, scale: float, seed: int) -> None:
    """The first-order values against the singular values of the moment of 8,000 examples."""
    layer = AttentionLayer.random(3, 8, scale=scale, seed=seed)
    x = getattr(data, tokens)(4, 8).sample(8000, seed=seed)
    problem = problem_of(x, layer(x), None, None, 0)
    computed = layer_gap(layer, x, layer(x), 0)
    measured = data_gap(problem, measure(problem, tools_of(0)), 0)
    assert measured.heads == 3
    np.testing.assert_allclose(computed.values, measured.values[:3], rtol=0.25)
    assert computed.floor == pytest.approx(measured.floor, rel=0.3)


def test_data_alone_marks_what_needs_the_layer(seed: int) -> None:
    layer = AttentionLayer.random(2, 6, seed=seed)
    x = data.Gaussian(4, 6).sample(3000, seed=seed)
    found = conditions(x, layer(x))
    unseen = [check for check in found.checks if "needs the layer" in check.text]
    assert {check.status for check in unseen} == {Status.NOT_RUN}
    assert {check.code for check in unseen} >= {"theta.incoherence", "sum.cancellation", "C3.bound"}
    assert found.figures["heads"] == 2
    assert found.advice.route == "recover"
    assert "need the layer's weights" in str(found)


def test_two_tokens_are_not_enough_and_the_text_says_so(seed: int) -> None:
    layer = hard.parity(6, 2, seed=seed)
    x = data.Boolean(2, 6).sample(2000, seed=seed)
    found = conditions(x, layer(x))
    assert found.advice.of("recover").feasible is False
    assert "a head equals its negative" in found.advice.text
    assert found.check("tokens.keys").status is Status.FAILS


@pytest.mark.slow
@pytest.mark.parametrize("heads", [2, 4])
def test_no_route_certifies_a_parity(seed: int, heads: int) -> None:
    found = conditions(hard.parity(8, heads, seed=seed), data.Boolean(2, 8).sample(2000, seed=seed))
    assert found.advice.route is None


def test_heads_that_write_alike_are_searched_for(seed: int) -> None:
    layer = AttentionLayer.random(3, 6, seed=seed)
    alike = layer.replace(w=np.repeat(layer.w[:1], 3, axis=0))
    assert beyond_search(layer) == beyond_search(alike) == ""
    between = np.stack([layer.theta[0], layer.theta[1], layer.theta[0] - layer.theta[1]])
    assert "scores depend" in beyond_search(alike.replace(theta=between))
    assert beyond_search(layer.replace(theta=between)) == ""
    assert "more than 9 heads" in beyond_search(AttentionLayer.random(10, 6, seed=seed))


def test_report_in_all_forms(tmp_path, capsys, seed: int) -> None:
    AttentionLayer.random(2, 5, seed=seed).save(tmp_path / "layer.safetensors")
    assert main(["conditions", str(tmp_path / "layer.safetensors"), "--json", str(tmp_path / "c.json")]) == 0
    shown = capsys.readouterr().out
    assert "Use recover(x, y)" in shown
    stored = json.loads((tmp_path / "c.json").read_text())
    assert stored["schema"] == "attnlearn/conditions"
    assert {route["route"] for route in stored["advice"]["routes"]} == {"recover", "extract", "sculpt"}
    x = data.Gaussian(3, 5).sample(400, seed=seed)
    np.savez(tmp_path / "data.npz", x=x, y=AttentionLayer.random(2, 5, seed=seed)(x))
    assert main(["conditions", str(tmp_path / "data.npz"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["examples"] == 400
    assert main(["conditions", str(tmp_path / "data.npz"), "--tokens", str(tmp_path / "data.npz")]) == 2


def test_frame_has_one_row_per_condition(seed: int) -> None:
    pytest.importorskip("pandas", reason="frames need the extra `report`")
    layer = AttentionLayer.random(2, 5, seed=seed)
    x = data.Gaussian(3, 5).sample(400, seed=seed)
    found = conditions(x, layer(x))
    assert list(found.frame()["code"]) == [check.code for check in found.checks]


def test_tokens_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="y: must hold tokens of shape"):
        conditions(AttentionLayer.random(2, 5), np.ones((10, 3, 4)))


def test_agreeing_rows_fall_with_the_number_of_heads(seed: int) -> None:
    """One head agrees with itself in every row that two tokens share; more heads agree less and less often."""
    x = data.Boolean(3, 8).sample(4000, seed=seed)
    rates = [agreeing_rows(AttentionLayer.random(m, 8, scale=4.0, seed=seed), x) for m in (1, 2, 3)]
    assert rates[0] > 5 * rates[1] > 25 * rates[2]


def test_queries_grow_with_what_must_be_found() -> None:
    assert query_count(2, 8, 8, 8) < query_count(4, 8, 8, 8) < query_count(4, 16, 16, 16)
    assert query_count(8, 128, 128, 16, 16) == pytest.approx(1320, rel=0.05)  # what `extract` asked
    assert query_count(16, 16, 16, 16) == pytest.approx(1335, rel=0.05)


def test_advice_prefers_the_first_feasible_route() -> None:
    routes = [
        RouteAdvice("recover", False, float("inf"), None, "two heads are equal"),
        RouteAdvice("extract", True, 2300, 10**6, ""),
    ]
    advice = Advice.choose(routes)
    assert advice.route == "extract"
    assert advice.text == (
        "Use extract(oracle): about 2,300 queries of your choice should do. Not recover: two heads are equal."
    )
    json.dumps(advice.to_json()["text"])


LAYERS = {
    "plenty": (lambda seed: AttentionLayer.random(2, 6, seed=seed), 2000, True),
    "scarce": (lambda seed: AttentionLayer.random(2, 6, seed=seed), 40, False),
    "tiny head": (lambda seed: hard.near_degenerate("tiny-head", 6, 2, 1e-3, seed=seed), 2000, True),
    "close heads": (lambda seed: hard.near_degenerate("close-heads", 6, 2, 1e-3, seed=seed), 2000, False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_advice_on_layers_that_anybody_can_judge(name: str, seed: int) -> None:
    layer, offered, works = LAYERS[name]
    truth = layer(seed)
    verdict = conditions(truth, data.Gaussian(4, 6).sample(offered, seed=seed), seed=seed).advice.of(
        "recover"
    )
    assert verdict.feasible == works
    assert works or verdict.needed > offered


CARVED = {
    "one head": ({"num_heads": 1}, 3, 60_000, ""),
    "one head of rank 3": ({"num_heads": 1, "rank": 3}, 3, 60_000, ""),
    "scarce": ({"num_heads": 2}, 3, 30_000, "too rare"),
    "weak": ({"num_heads": 1, "scale": 0.3}, 3, 60_000, "too rare"),
    "one-hot": ({"num_heads": 1, "scale": 400.0}, 3, 60_000, "one-hot"),
    "too many": ({"num_heads": 3}, 4, 60_000, "exceeds d_out"),
    "two keys": ({"num_heads": 2}, 2, 60_000, "with two keys"),
}


SAME_SHAPE = ("one head", "weak", "one-hot")
"""Every other shape is compiled for ten seconds."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAME_SHAPE else pytest.mark.slow) for name in CARVED]
)
def test_advice_on_sculpting(name: str, seed: int) -> None:
    """The benchmark `conditions` runs sculpting on layers like these."""
    options, tokens, offered, reason = CARVED[name]
    layer = AttentionLayer.random(**{"dim": 8, "scale": 4.0, "seed": seed, **options})
    verdict = conditions(layer, data.Boolean(tokens, 8).sample(offered, seed=seed), seed=seed).advice.of(
        "sculpt"
    )
    assert verdict.feasible == (not reason)
    assert reason in verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_advice_comes_true(name: str, seed: int) -> None:
    """The benchmark `conditions` asks the same of sixty layers."""
    layer, offered, works = LAYERS[name]
    truth = layer(seed)
    x = data.Gaussian(4, 6).sample(offered, seed=seed)
    assert recover(x, truth(x), seed=seed, progress=False, raise_on_failure=False).certified == works


def test_examples_grow_with_the_square_of_what_is_missing() -> None:
    gap = Gap(np.array([1.0, 0.5]), 0.5, 300, 0.4, 2, None)
    once = spectral_examples(gap, unknowns=100, scalars=32)
    weaker = spectral_examples(replace(gap, values=np.array([1.0, 0.25])), unknowns=100, scalars=32)
    assert weaker == pytest.approx(4 * once, rel=0.01)
    assert spectral_examples(gap, unknowns=10**6, scalars=32) > 10 * once
    assert np.isinf(spectral_examples(replace(gap, values=np.array([1.0, 1e-12])), unknowns=100, scalars=32))


def test_words_of_a_list_are_left_to_the_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = AttentionLayer.random(5, 12, rank=4, seed=seed)
    words = rng.standard_normal((36, 12))
    for num, feasible in ((4_000, None), (150, False)):
        x = words[rng.integers(36, size=(num, 6))]
        advice = conditions(x, layer(x), seed=seed).advice.of("recover")
        assert advice.feasible is feasible
        assert ("random starts" in advice.reason) or feasible is False
