"""The judge of the hostile suite, on certificates made by hand: each kind of wrong claim is caught, right ones pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnlearn import AttentionLayer, Certificate
from attnlearn._certificate import Claim
from attnlearn.scores import Bilinear, Relative, Rotary
from tests.problems import broken_claims
from tests.problems._heads import apart, reduced, span, visibility
from tests.problems._plain import forward
from tests.problems._positioned import RELATIVE, ROTARY, Shape, random_by_offset
from tests.problems._problem import Fresh

TRUTH = AttentionLayer.random(3, 6, scale=2.0, bias=True, seed=5)
X = np.random.default_rng(0).standard_normal((4000, 5, 6))
FRESH = Fresh(X, forward(TRUTH, X))


def judged(code: str, value: Any, layer=TRUTH, truth=TRUTH, fresh=FRESH, **more: Any) -> list[str]:
    options = {name: more.pop(name) for name in ("assumes", "scope") if name in more}
    claim = Claim(code, "", True, value, **options)
    return broken_claims(Certificate((claim,)), layer, truth, fresh, **more)


def function(error: float = 1e-12, fraction: float = 0.99, **more: Any) -> dict[str, Any]:
    return {"error": error, "fraction": fraction, "examples": 1000, **more}


def parameters(bound: float, heads: list[float] | None = None, biases: Any = None) -> dict[str, Any]:
    return {"bound": bound, "heads": heads or [bound] * 3, "biases": biases, "weights": bound}


def moved(size: float, name: str = "theta", head: int = 1) -> AttentionLayer:
    array = getattr(TRUTH, name).copy()
    array[head] *= 1 + size
    return TRUTH.replace(**{name: array})


@pytest.mark.parametrize("causal", [False, True])
def test_plain_attention_is_the_layer(causal: bool) -> None:
    layer = TRUTH.replace(causal=causal)
    mask = np.arange(5) < np.random.default_rng(1).integers(2, 6, 300)[:, None]
    np.testing.assert_allclose(forward(layer, X[:300]), layer(X[:300]), atol=1e-13)
    np.testing.assert_allclose(forward(layer, X[:300], mask), layer(X[:300], mask), atol=1e-13)


def test_right_claims_pass() -> None:
    order = [2, 0, 1]
    same = TRUTH.replace(theta=TRUTH.theta[order], w=TRUTH.w[order], query_bias=TRUTH.query_bias[order])
    claims = (
        Claim("C1", "", True, function(1e-14)),
        Claim("C2", "", True, 3, scope={"apart": 0.1, "visible": 1e-3, "fraction": 0.5}),
        Claim("C3", "", True, parameters(1e-14, biases=1e-14)),
    )
    assert broken_claims(Certificate(claims), same, TRUTH, FRESH) == []


def test_a_claim_that_is_not_established_is_not_judged() -> None:
    assert broken_claims(Certificate((Claim("C2", "", False, 7),)), TRUTH, TRUTH, FRESH) == []


def test_a_fraction_of_inputs_that_is_too_large() -> None:
    y = FRESH.y.copy()
    y[:200] *= 1.01  # 5 % of the inputs
    assert judged("C1", function(fraction=0.99), fresh=(X, y)) == ["C1"]
    assert judged("C1", function(fraction=0.94), fresh=(X, y)) == []
    assert judged("C1", function(error=0.02), fresh=(X, y)) == []


def test_chance_alone_breaks_no_fraction() -> None:
    y = FRESH.y.copy()
    y[:45] *= 1.01  # 1.1 % of the inputs, where 1 % is claimed
    assert judged("C1", function(fraction=0.99), fresh=(X, y)) == []


def test_only_the_printed_floor_forgives_small_outputs() -> None:
    x = X.copy()
    x[:2000] *= 1e-6
    truth = TRUTH.replace(output_bias=0 * TRUTH.output_bias)
    near = truth.replace(output_bias=truth.output_bias + 1e-7)
    fresh = (x, forward(truth, x))
    assert judged("C1", function(error=1e-5), layer=near, truth=truth, fresh=fresh) == ["C1"]
    assert judged("C1", function(error=1e-5, floor=0.1), layer=near, truth=truth, fresh=fresh) == []


def test_the_unit_decides_what_a_fraction_is_of() -> None:
    y = FRESH.y.copy()
    y[2000:] *= 2.0
    groups = np.where(np.arange(4000) >= 2000, 10**6, np.arange(4000))
    fresh = Fresh(X, y, None, groups)
    assert judged("C1", function(unit="group"), fresh=fresh) == []
    assert judged("C1", function(unit="input"), fresh=fresh) == ["C1"]
    copies = np.concatenate([X[:2000], np.repeat(X[2000:2001], 2000, axis=0)])
    wrong = np.concatenate([FRESH.y[:2000], np.repeat(y[2000:2001], 2000, axis=0)])
    assert judged("C1", function(unit="distinct input"), fresh=(copies, wrong)) == []
    assert judged("C1", function(unit="input"), fresh=(copies, wrong)) == ["C1"]


def test_padding_is_not_judged() -> None:
    mask = np.arange(5) < np.random.default_rng(1).integers(2, 6, 4000)[:, None]
    y = np.where(mask[..., None], forward(TRUTH, X, mask), 9.0)
    assert judged("C1", function(), fresh=Fresh(X, y, mask)) == []
    assert judged("C1", function(), fresh=Fresh(X, y)) == ["C1"]


@pytest.mark.parametrize("count", [2, 4])
def test_a_wrong_number_of_heads(count: int) -> None:
    assert judged("C2", count) == ["C2"]
    assert judged("C2", 3) == []


def test_equal_heads_count_once_and_idle_ones_not() -> None:
    theta = np.concatenate([TRUTH.theta, TRUTH.theta[:2]])
    bias = np.concatenate([TRUTH.query_bias, TRUTH.query_bias[:2]])
    w = np.concatenate([TRUTH.w, TRUTH.w[:1], 0 * TRUTH.w[:1]])
    truth = AttentionLayer(theta, w, bias, TRUTH.output_bias)
    assert judged("C2", 3, truth=truth) == []
    assert judged("C2", 5, truth=truth) == ["C2"]


def faint(size: float) -> AttentionLayer:
    w = TRUTH.w.copy()
    w[2] *= size
    return TRUTH.replace(w=w)


def test_a_head_below_the_scope_breaks_nothing_and_one_above_does() -> None:
    two = AttentionLayer(TRUTH.theta[:2], TRUTH.w[:2], TRUTH.query_bias[:2], TRUTH.output_bias)
    scope = {"apart": 1e-6, "visible": 1e-4, "fraction": 0.5}
    assert judged("C2", 2, layer=two, truth=faint(1e-8), scope=scope) == []
    assert judged("C2", 2, layer=two, truth=faint(1e-2), scope=scope) == ["C2"]
    assert judged("C2", 2, layer=two, truth=faint(1e-8)) == ["C2"]  # no scope, no excuse
    assert judged("C3", parameters(1e-9, [1e-9] * 2), layer=two, truth=faint(1e-8), scope=scope) == []


def test_heads_closer_than_the_scope_break_nothing() -> None:
    theta, bias = TRUTH.theta.copy(), TRUTH.query_bias.copy()
    theta[1], bias[1] = theta[0] * (1 + 1e-6), bias[0] * (1 + 1e-6)
    truth = TRUTH.replace(theta=theta, query_bias=bias)
    two = AttentionLayer(theta[[0, 2]], TRUTH.w[[0, 2]], bias[[0, 2]])
    assert judged("C2", 2, layer=two, truth=truth, scope={"apart": 1e-3, "visible": 0, "fraction": 0.5}) == []
    assert judged("C2", 2, layer=two, truth=truth, scope={"apart": 1e-8, "visible": 0, "fraction": 0.5}) == [
        "C2"
    ]


def test_a_scope_that_leaves_out_the_answer_is_empty() -> None:
    assert judged("C2", 3, scope={"apart": 5.0, "visible": 0.0, "fraction": 0.5}) == ["C2"]
    assert judged("C2", 3, scope={"apart": 0.0, "visible": 5.0, "fraction": 0.5}) == ["C2"]


@pytest.mark.parametrize("name", ["theta", "w"])
def test_parameters_beyond_their_bound(name: str) -> None:
    assert judged("C3", parameters(1e-6), layer=moved(1e-5, name)) == ["C3"]
    assert judged("C3", parameters(1e-4), layer=moved(1e-5, name)) == []


def test_every_head_has_its_own_bound() -> None:
    assert judged("C3", parameters(1.0, [1.0, 1e-6, 1.0]), layer=moved(1e-5, head=1)) == ["C3"]
    assert judged("C3", parameters(1.0, [1e-6, 1e-4, 1e-6]), layer=moved(1e-5, head=1)) == []


def test_a_bias_bound_excuses_no_theta_and_no_bound_judges_no_bias() -> None:
    assert judged("C3", parameters(1.0, [1e-9] * 3, biases=[1.0] * 4), layer=moved(1e-5)) == ["C3"]
    other = TRUTH.replace(query_bias=TRUTH.query_bias * 3, output_bias=TRUTH.output_bias + 1)
    assert judged("C3", parameters(1e-9), layer=other) == []
    assert judged("C3", parameters(1e-9, biases=0.1), layer=other) == ["C3"]
    assert judged("C3", parameters(1e-9, biases=[5, 5, 5, 0.1]), layer=other) == ["C3"]


def test_flipped_and_transposed_heads_are_other_layers() -> None:
    flipped = TRUTH.replace(theta=-TRUTH.theta, w=-TRUTH.w, query_bias=-TRUTH.query_bias)
    assert judged("C3", parameters(0.5), layer=flipped) == ["C3"]
    assert judged("C3", parameters(0.5), layer=TRUTH.replace(theta=np.swapaxes(TRUTH.theta, 1, 2))) == ["C3"]


def test_without_a_layer_or_with_another_mask_every_statement_about_heads_is_false() -> None:
    assert judged("C2", 3, truth=None) == ["C2"]
    assert judged("C3", parameters(1.0), truth=TRUTH.replace(causal=True)) == ["C3"]


def test_an_assumption_excuses_only_where_it_may() -> None:
    assumes = ("the layer is in general position",)
    assert judged("C2", 2, assumes=assumes) == ["C2"]
    assert judged("C2", 2, assumes=assumes, excuses=("general position",)) == []
    assert judged("C2", 2, assumes=("tokens have a joint density",), excuses=("general position",)) == ["C2"]
    wrong = function(), {"layer": moved(0.5), "assumes": assumes, "excuses": ("general position",)}
    assert judged("C1", wrong[0], **wrong[1]) == ["C1"]  # an error on inputs is no matter of heads


def test_only_what_tokens_show_is_compared() -> None:
    rng = np.random.default_rng(2)
    basis, still = np.linalg.qr(rng.standard_normal((6, 4)))[0], rng.standard_normal(6)
    x = rng.standard_normal((2000, 5, 4)) @ basis.T + still
    hidden = np.eye(6) - basis @ basis.T
    normal = hidden @ still / (still @ hidden @ still)  # 1 on every token
    shift, other = rng.standard_normal((6,)), rng.standard_normal((6,))
    same = TRUTH.replace(
        theta=TRUTH.theta + np.outer(shift, normal) + np.outer(normal, other),
        query_bias=TRUTH.query_bias - other,
    )
    fresh = Fresh(x, forward(TRUTH, x))
    np.testing.assert_allclose(forward(same, x), fresh.y, atol=1e-12)
    assert span(x).basis.shape == (6, 4)
    assert judged("C3", parameters(1e-12, biases=1e-12), layer=same, fresh=fresh) == []
    assert judged("C3", parameters(1e-12), layer=same) == ["C3"]
    place = span(x)
    inside = reduced(TRUTH, place)
    np.testing.assert_allclose(forward(inside, x @ place.basis), fresh.y, atol=1e-12)


def test_visibility_is_what_the_others_cannot_take_over() -> None:
    place = span(X)
    plain = visibility(reduced(TRUTH, place), FRESH, place, 0.5)
    assert (plain > 0.05).all()
    theta, bias = TRUTH.theta.copy(), TRUTH.query_bias.copy()
    theta[1], bias[1] = theta[0] * (1 + 1e-5), bias[0] * (1 + 1e-5)
    close = reduced(TRUTH.replace(theta=theta, query_bias=bias), place)
    assert 1e-6 < apart(close) < 1e-4
    shown = visibility(close, FRESH, place, 0.5)
    assert (shown[:2] < 1e-4).all()
    assert shown[2] > 0.05
    rare = visibility(reduced(TRUTH, place), FRESH, place, 0.01)
    assert (rare > plain).all()


@pytest.mark.parametrize("kind", ROTARY + RELATIVE)
@pytest.mark.parametrize("causal", [False, True])
def test_layers_with_positions_are_written_out_by_offset(kind: str, causal: bool) -> None:
    shape = Shape(heads=2, dim=6, width=4, tokens=5, window=3, causal=causal)
    layer = random_by_offset(kind, shape, np.random.default_rng(3))
    np.testing.assert_allclose(forward(layer, X[:50]), layer(X[:50]), atol=1e-13)


@pytest.mark.parametrize("kind", ["rotary", "table"])
def test_claims_about_theta_by_offset_are_judged(kind: str) -> None:
    layer = random_by_offset(kind, Shape(2, 6, 4, 5), np.random.default_rng(4))
    fresh = Fresh(X, forward(layer, X))
    value = {"bound": 1e-3, "heads": [1e-3] * 2, "biases": None, "weights": 1e-3}
    arrays = layer.form.arrays()
    name = "query" if kind == "rotary" else "theta"
    near, far = (_with(layer, kind, {**arrays, name: arrays[name] * (1 + size)}) for size in (5e-4, 2e-3))
    options = {"truth": layer, "fresh": fresh}
    assert judged("C3", value, layer=near, **options) == []
    assert judged("C3", value, layer=far, **options) == ["C3"]
    assert judged("C2", 3, layer=layer, **options) == ["C2"]
    wider = AttentionLayer.from_scores(layer.form, layer.w, causal=True, window=3)
    assert judged("C2", 2, layer=wider, **options) == ["C2"]
    assert judged("C1", function(1e-6), layer=far, **options) == ["C1"]


def _with(layer: AttentionLayer, kind: str, arrays: dict[str, np.ndarray]) -> AttentionLayer:
    if kind == "rotary":
        scores: Any = Rotary(arrays["query"], arrays["key"], layer.form.rotation)
    else:
        base = Bilinear.whole(arrays["theta"], arrays["query_bias"])
        scores = Relative(base, arrays["table"], layer.form.offsets)
    return AttentionLayer.from_scores(scores, layer.w, causal=layer.visible)
