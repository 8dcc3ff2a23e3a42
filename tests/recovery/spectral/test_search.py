"""Search: random starts take over where the moment says nothing, and give up as it did."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, data, distance, recover
from attnlearn.data import as_examples
from attnlearn.engine import Engine, Progress, Stop, Tools
from attnlearn.recovery.spectral import _fallback
from attnlearn.recovery.spectral._fallback import or_fallback, or_search
from attnlearn.recovery.spectral._prepare import prepare
from attnlearn.recovery.spectral._search import NOTHING, search, searchable
from attnlearn.recovery.spectral._state import Problem, State, repeated
from attnlearn.recovery.spectral._unmix import unmix
from attnlearn.solve._split import Split

DIM, TOKENS, NUM = 6, 5, 700


def tokens(rng: np.random.Generator) -> np.ndarray:
    """Every position with a mean of its own, and neighbours that share a part."""
    x = rng.standard_normal((NUM, TOKENS, DIM)) + 2 * rng.standard_normal((TOKENS, DIM))
    x[:, 1:] += 0.5 * x[:, :-1]
    return x


def prepared(x: np.ndarray, y: np.ndarray, tools: Tools, **known: int) -> tuple[Problem, State]:
    problem = Problem(as_examples(x, y), Split.make(len(x)), **known)
    return problem, prepare(problem, State(), tools)[0]


@pytest.fixture
def tools(seed) -> Tools:
    return Tools(Engine.parse(None), Progress.make("quiet"), seed)


def test_random_starts_find_the_heads(rng, seed, tools) -> None:
    truth = AttentionLayer.random(2, DIM, seed=seed, bias=True)
    x = tokens(rng)
    problem, state = prepared(x, truth(x), tools)
    assert searchable(problem, state, "TOKENS_DEGENERATE")
    found, info = search(problem, dataclasses.replace(state, stopped="TOO_FEW_EXAMPLES"), tools)
    assert found.num_heads == 2
    layer = AttentionLayer(found.theta, found.w, found.query_bias, found.output_bias)
    assert distance(layer, truth).max < 1e-2
    last = info["searched"][-1]
    assert last["heads"] > last["left"] == 2
    assert last["left_error"] < 1e-3


@pytest.mark.parametrize(("num", "few"), [(NUM, False), (100, True)])
def test_independent_tokens_are_searched_only_when_they_are_too_few(rng, tools, num, few) -> None:
    x = rng.standard_normal((num, TOKENS, DIM))
    problem, state = prepared(x, AttentionLayer.random(2, DIM)(x), tools)
    assert not searchable(problem, state, "TOKENS_DEGENERATE")
    assert searchable(problem, state, "TOO_FEW_EXAMPLES") is few


def test_fewer_examples_than_the_moment_wants(seed) -> None:
    layer = AttentionLayer.random(2, 12, scale=1.0, seed=seed)
    x = data.Gaussian(3, 12).sample(220, seed=seed + 1)
    solution = recover(x, layer(x), seed=seed)
    assert {"guessed", "searched"} & set(solution.phase("unmix").evidence)
    assert solution.outcome is Outcome.RECOVERED
    assert solution.layer.num_heads == 2
    assert distance(solution.layer, layer).max < 1e-10


def test_too_few_examples_ask_for_a_number_that_is_right(seed) -> None:
    layer = AttentionLayer.random(3, 8, scale=1.0, seed=seed)
    few, enough = (data.Gaussian(3, 8).sample(num, seed=seed + 1) for num in (60, 3_000))
    refused = recover(few, layer(few), seed=seed, raise_on_failure=False)
    assert refused.outcome is Outcome.TOO_FEW_EXAMPLES
    needed = refused.stats["examples_needed"]
    assert len(few) < needed < 1_000
    assert recover(enough[:needed], layer(enough[:needed]), seed=seed).certified


def test_a_guess_that_proves_nothing_gives_way_to_the_search(tools, monkeypatch) -> None:
    layer = AttentionLayer.random(2, DIM, scale=1.0)
    x = data.Gaussian(TOKENS, DIM).sample(100)
    problem, state = prepared(x, layer(x), tools)
    state = dataclasses.replace(state, stopped="TOO_FEW_EXAMPLES")
    for proved in (False, True):
        monkeypatch.setattr(_fallback, "guess", lambda *_, proved=proved: (state, {"guess_proved": proved}))
        _, evidence = or_fallback(unmix, last=True)(problem, state, tools)
        assert ("searched" in evidence) is not proved


@pytest.mark.parametrize(("num", "outcome"), [(60, "TOO_FEW_EXAMPLES"), (NUM, "NOT_ATTENTION")])
def test_a_search_that_finds_nothing_ends_as_the_phase_did_or_says_why(rng, tools, num, outcome) -> None:
    x = tokens(rng)[:num]
    y = np.tanh(x @ rng.standard_normal((DIM, DIM))) * x.mean(axis=1, keepdims=True)  # no attention layer
    problem, state = prepared(x, y, tools, num_heads=1)

    def moment(problem, state, tools):
        raise Stop("TOO_FEW_EXAMPLES", {"examples_needed": 123})

    left, evidence = or_fallback(moment)(problem, state, tools)
    assert (left.stopped, evidence["stopped"]) == ("TOO_FEW_EXAMPLES", "TOO_FEW_EXAMPLES")
    with pytest.raises(Stop) as stop:
        or_fallback(moment, last=True)(problem, left, tools)
    assert stop.value.outcome_name == outcome
    assert ("examples_needed" in stop.value.evidence) == (outcome == "TOO_FEW_EXAMPLES")
    tried = stop.value.evidence["searched"]
    assert tried
    assert not any("left" in entry for entry in tried)
    assert not searchable(problem, stop.value.state, "TOO_FEW_EXAMPLES")  # once is enough


def test_words_of_a_list_repeat_and_signs_are_modelled(rng, tools) -> None:
    words = rng.standard_normal((30, DIM))
    signs = rng.choice([-1.0, 1.0], (NUM, TOKENS, DIM))
    for x, expected in (
        (words[rng.integers(30, size=(NUM, TOKENS))], True),
        (signs, False),
        (tokens(rng), False),
    ):
        problem, state = prepared(x, AttentionLayer.random(2, DIM, seed=1)(x), tools)
        assert repeated(problem, state) is expected


@pytest.mark.parametrize("heads", [2, 3, 9])
def test_words_of_a_list_are_searched_before_the_moment(rng, seed, heads) -> None:
    truth = AttentionLayer.random(heads, 10, rank=4, seed=seed, bias=True)
    x = rng.standard_normal((30, 10))[rng.integers(30, size=(3_000, 6))]
    solution = recover(x, truth(x), seed=seed)
    assert solution.phase("moment").evidence["searched"][-1]["left"] == heads
    assert "skipped" in solution.phase("unmix").evidence
    assert solution.certified
    assert distance(solution.layer, truth).max < 1e-9


def test_a_given_number_of_heads_is_what_is_left(rng, seed) -> None:
    truth = AttentionLayer.random(3, 8, seed=seed)
    x = rng.standard_normal((24, 8))[rng.integers(24, size=(2_000, 5))]
    assert recover(x, truth(x), num_heads=3, seed=seed).certified
    short = recover(x, truth(x), num_heads=2, seed=seed, raise_on_failure=False)
    assert not short.certified


def test_noise_is_what_the_search_may_leave(rng, seed) -> None:
    truth = AttentionLayer.random(3, 8, bias=True, seed=seed)
    x = rng.standard_normal((24, 8))[rng.integers(24, size=(3_000, 5))]
    y = truth(x)
    solution = recover(
        x, y + 0.01 * y.std() * rng.standard_normal(y.shape), seed=seed, raise_on_failure=False
    )
    assert solution.outcome is Outcome.BELOW_NOISE_FLOOR
    assert solution.layer.num_heads == 3
    assert distance(solution.layer, truth).max < 0.02


def test_a_search_that_fails_leaves_the_moment_its_turn(rng, tools) -> None:
    x = tokens(rng)
    problem, state = prepared(x, AttentionLayer.random(2, DIM)(x), tools)

    def found(problem, state, tools):
        return state, {"phase": "moment"}

    def stopped(problem, state, tools):
        raise Stop("TOO_FEW_EXAMPLES", {"phase": "moment"})

    few = dataclasses.replace(
        problem, split=Split(problem.split.fit[:3], problem.split.select, problem.split.certify)
    )
    left, evidence = or_search(found)(few, state, tools)
    assert left.searched == NOTHING
    assert evidence == {"searched": [], "phase": "moment"}
    with pytest.raises(Stop) as stop:
        or_search(stopped)(few, state, tools)
    assert stop.value.state.searched == NOTHING
    assert stop.value.evidence == {"searched": [], "phase": "moment"}


def test_what_many_heads_do_not_fit_is_no_attention(rng, seed) -> None:
    words = rng.standard_normal((24, 8))[rng.integers(24, size=(2_500, 4))]
    y = np.tanh(words.reshape(2_500, -1) @ rng.standard_normal((32, 32)) / 3).reshape(words.shape)
    solution = recover(words, y, seed=seed, raise_on_failure=False)
    assert solution.outcome is Outcome.NOT_ATTENTION
    assert solution.stats["diagnosis"]["cause"]
    assert "examples_needed" not in solution.stats


def test_many_heads_in_few_examples_are_not_called_something_else(seed, rng):
    """Sixteen random heads learn nothing of twenty-four; on independent tokens that only says that examples are few."""
    layer = AttentionLayer.random(24, 32, rank=8, seed=seed)
    x = rng.standard_normal((740, 8, 32))
    solution = recover(x, layer(x), raise_on_failure=False)
    assert solution.outcome is Outcome.TOO_FEW_EXAMPLES
    assert solution.stats["examples_needed"] > 740
