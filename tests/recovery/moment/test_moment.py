"""The moment: its span holds the heads, what follows them is the floor, and it reads as many examples as it needs."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance, recover
from attnlearn.engine import Tools
from attnlearn.recovery.moment._moment import take_moment
from attnlearn.recovery.moment._operator import orthonormal
from tests.recovery._problems import made_moment, moment, problem, signals, start, tokens


@pytest.mark.parametrize("kind", ["normal", "boolean", "correlated", "normalized"])
def test_deflation_leaves_the_next_value_at_the_floor(seed, rng, kind):
    layer = AttentionLayer.random(3, 16, rank=6, seed=seed)
    found = moment(problem(layer, tokens(rng, kind, 5000, 6, 16)), seed)
    values, floor = found.values, found.floor
    assert values[2] > 2 * floor
    assert 0.6 * floor < values[3] < 1.2 * floor
    assert found.visible == 3


def test_span_contains_the_heads(seed, rng):
    layer = AttentionLayer.random(3, 12, seed=seed)
    whole = problem(layer, tokens(rng, "normal", 8000, 6, 12))
    inside = signals(whole).white.enter(layer.parameters)
    heads = np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1).reshape(3, -1)
    span = orthonormal(moment(whole, seed).query_basis[:3]).reshape(3, -1)
    along = np.linalg.norm(heads @ span.T, axis=1) / np.linalg.norm(heads, axis=1)
    assert np.sqrt(1 - along**2).max() < 0.25


def test_result_does_not_depend_on_the_number_of_threads(monkeypatch, rng):
    layer = AttentionLayer.random(2, 8, seed=0)
    whole = problem(layer, tokens(rng, "normal", 1500, 5, 8))
    results = []
    for threads in (1, 3):
        monkeypatch.setattr("attnlearn.engine._threads.own_threads", lambda threads=threads: threads)
        results.append(start(whole).weights.layer.theta)
    assert np.array_equal(*results)


def test_randomness_comes_from_the_tools(rng):
    layer = AttentionLayer.random(2, 8, seed=0)
    whole = problem(layer, tokens(rng, "normal", 1500, 5, 8))
    assert np.array_equal(moment(whole, 5).query_basis, moment(whole, 5).query_basis)
    assert Tools(seed=5).rng("moment").random() != Tools(seed=6).rng("moment").random()


def test_heads_of_rank_one_show_twice_and_do_not_break_the_moment(seed, rng):
    layer = AttentionLayer.random(3, 16, rank=1, seed=seed)
    found = moment(problem(layer, tokens(rng, "normal", 8000, 6, 16)), seed)
    assert np.isfinite(found.values).all()
    assert found.visible >= 3


def test_values_are_visible_above_the_floor_and_a_margin():
    assert made_moment(np.array([3.0, 1.3, 1.1, 0.9]), floor=1.0).visible == 2


def test_few_of_many_examples_are_read_where_the_heads_are_clear_and_all_where_every_is_asked(seed, rng):
    whole = problem(AttentionLayer.random(2, 8, seed=seed), tokens(rng, "normal", 9000, 5, 8))
    found, tools = signals(whole, seed), Tools(seed=seed)
    few, evidence = take_moment(whole, found, tools)
    assert few.visible == 2
    assert evidence["examples"] == few.examples < 0.6 * len(found.fit)
    assert evidence["passes"] == len(evidence["history"])
    assert take_moment(whole, found, tools, every=True)[0].examples == len(found.fit)


def test_clear_heads_need_few_of_many_examples(seed: int, rng) -> None:
    truth, x = AttentionLayer.random(3, 10, rank=4, seed=seed), rng.standard_normal((12_000, 5, 10))
    found = recover(x, truth(x))
    assert found.certified
    assert found.phase("moment").evidence["examples"] < 0.6 * len(x)
    assert "skipped" in found.phase("moment of every example").evidence


@pytest.mark.slow
def test_a_head_hidden_in_few_examples_is_found_after_all(seed: int, rng) -> None:
    """Its value lies below the noise of the examples that showed the two others."""
    layer = AttentionLayer.random(3, 10, rank=3, seed=seed)
    truth = layer.replace(w=layer.w * np.array([1, 1, 0.02])[:, None, None])
    x = rng.standard_normal((8_000, 5, 10))
    found = recover(x, truth(x))
    assert found.certified
    assert distance(found.layer, truth).max < 1e-9
    assert found.phase("moment").evidence["visible"] == 2
    later = ("moment of every example", "wide search after the moment", "one more head")
    assert any(phase.name in later and "skipped" not in phase.evidence for phase in found.phases)


def test_noise_asks_all_examples_and_finds_no_more_heads(seed: int, rng) -> None:
    truth, x = AttentionLayer.random(2, 8, seed=seed), rng.standard_normal((6_000, 4, 8))
    y = truth(x)
    found = recover(x, y + 3e-3 * y.std() * rng.standard_normal(y.shape), raise_on_failure=False)
    assert found.layer.num_heads == 2
    assert found.phase("moment of every example").evidence["heads"] == "no more than before"
