"""The wide search: random starts find the heads where the moment says nothing, and say so where they find none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, data, distance, recover
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._proposers import TABLES
from attnlearn.recovery._trail import Trail
from attnlearn.recovery.wide._prune import WideFit
from attnlearn.recovery.wide._search import _better, _misfits, _worth_widening, search
from attnlearn.solve._split import Split
from tests.recovery._problems import FEW, problem, signals

DIM, TOKENS, NUM = 6, 5, 700
FIRST = next(row for row in TABLES["auto"] if row.name == "wide search")
LATER = next(row for row in TABLES["auto"] if row.name == "wide search after the moment")


def tokens(rng: np.random.Generator) -> np.ndarray:
    """Every position with a mean of its own, and neighbours that share a part."""
    x = rng.standard_normal((NUM, TOKENS, DIM)) + 2 * rng.standard_normal((TOKENS, DIM))
    x[:, 1:] += 0.5 * x[:, :-1]
    return x


def wide(errors: list[float], heads: int, residual: float | None = None) -> list[WideFit]:
    layer = AttentionLayer.random(heads, 3)
    return [WideFit(layer, None, error, error if residual is None else residual, 5) for error in errors]


@pytest.mark.parametrize(
    ("found", "best", "expected"),
    [
        ((1e-4, 4), (1e-5, 6), True),
        ((1e-5, 6), (1e-4, 4), False),
        ((1e-2, 8), (3e-2, 4), True),
        ((3e-2, 4), (1e-2, 8), False),
    ],
)
def test_fewer_heads_are_better_where_both_fits_explain_and_otherwise_the_smaller_error(
    found, best, expected
):
    (found,), (best,) = (wide([error], heads) for error, heads in (found, best))
    assert _better(found, best, enough=1e-3) is expected


def test_random_starts_find_the_heads(rng, seed) -> None:
    truth = AttentionLayer.random(2, DIM, seed=seed, bias=True)
    whole = problem(truth, tokens(rng))
    found = signals(whole, seed)
    assert not found.modelled
    best, tried, misfits = search(whole, found, Tools(seed=seed))
    assert not misfits
    assert best.layer.num_heads == 2
    assert distance(best.layer, truth).max < 1e-2
    last = tried[-1]
    assert last["heads"] > last["left"] == 2
    assert last["left_error"] < 1e-3


@pytest.mark.parametrize(("num", "few"), [(NUM, False), (100, True)])
def test_independent_tokens_are_searched_only_when_they_are_too_few(rng, num, few) -> None:
    whole = problem(AttentionLayer.random(2, DIM), rng.standard_normal((num, TOKENS, DIM)))
    found = signals(whole)
    assert found.modelled
    assert found.scarce is few
    why = LATER.wanted(whole, found, Trail(needs={"moment": FEW}))
    assert (why is None) is few


def test_fewer_examples_than_the_moment_wants(seed) -> None:
    layer = AttentionLayer.random(2, 12, scale=1.0, seed=seed)
    x = data.Gaussian(3, 12).sample(220, seed=seed + 1)
    solution = recover(x, layer(x), seed=seed)
    ran = {phase.name for phase in solution.phases if "skipped" not in phase.evidence}
    assert {"suggested count", "wide search after the moment"} & ran
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


@pytest.mark.parametrize(("num", "outcome"), [(60, Outcome.TOO_FEW_EXAMPLES), (NUM, Outcome.NOT_ATTENTION)])
def test_a_search_that_finds_nothing_asks_for_examples_or_says_that_it_is_no_attention(
    rng, num, outcome
) -> None:
    x = tokens(rng)[:num]
    y = np.tanh(x @ rng.standard_normal((DIM, DIM))) * x.mean(axis=1, keepdims=True)  # no attention layer
    whole = Problem(as_examples(x, y), Split.make(len(x)), num_heads=1)
    found = FIRST.propose(whole, signals(whole), Trail(), Tools())
    assert found.candidate is None
    assert found.need.outcome is outcome
    assert (found.need.examples is not None) == (outcome is Outcome.TOO_FEW_EXAMPLES)
    assert found.evidence["starts"]
    assert not any("left" in entry for entry in found.evidence["starts"])
    after = Trail(asked=("wide search",), needs={"wide search": found.need})
    assert LATER.wanted(whole, signals(whole), after) is not None  # once is enough


@pytest.mark.parametrize("heads", [2, 3, 9])
def test_words_of_a_list_are_searched_before_the_moment(rng, seed, heads) -> None:
    truth = AttentionLayer.random(heads, 10, rank=4, seed=seed, bias=True)
    x = rng.standard_normal((30, 10))[rng.integers(30, size=(3_000, 6))]
    solution = recover(x, truth(x), seed=seed)
    assert solution.phase("wide search").evidence["starts"][-1]["left"] == heads
    assert "skipped" in solution.phase("moment").evidence
    assert solution.certified
    assert distance(solution.layer, truth).max < 1e-9


def test_a_given_number_of_heads_is_what_is_left(rng, seed) -> None:
    truth = AttentionLayer.random(3, 8, seed=seed)
    x = rng.standard_normal((24, 8))[rng.integers(24, size=(2_000, 5))]
    assert recover(x, truth(x), num_heads=3, seed=seed).certified
    short = recover(x, truth(x), num_heads=2, seed=seed, raise_on_failure=False)
    assert not short.certified


@pytest.mark.slow
def test_noise_is_what_the_search_may_leave(rng, seed) -> None:
    truth = AttentionLayer.random(3, 8, bias=True, seed=seed)
    x = rng.standard_normal((24, 8))[rng.integers(24, size=(3_000, 5))]
    y = truth(x)
    solution = recover(
        x, y + 0.01 * y.std() * rng.standard_normal(y.shape), seed=seed, raise_on_failure=False
    )
    assert solution.outcome is Outcome.RECOVERED
    assert solution.layer.num_heads == 3
    assert distance(solution.layer, truth).max < 0.02


def test_too_few_equations_for_any_head_try_nothing(rng) -> None:
    whole = problem(AttentionLayer.random(2, DIM), tokens(rng))
    few = dataclasses.replace(whole, split=dataclasses.replace(whole.split, fit=whole.split.fit[:3]))
    found = search(few, signals(whole), Tools())
    assert found == (None, [], False)


def test_a_search_out_of_time_tries_nothing_more(rng) -> None:
    whole = problem(AttentionLayer.random(2, DIM), tokens(rng))
    assert search(whole, signals(whole), Tools(deadline=0.0)) == (None, [], False)


@pytest.mark.parametrize(
    ("groups", "worth", "misfits"),
    [
        ([], True, False),
        ([wide([0.2], 8)], True, False),
        ([wide([0.2], 8), wide([0.1], 16)], True, False),  # more heads do better: still more may be needed
        ([wide([0.2], 8), wide([0.19], 16)], False, True),
        ([wide([0.2], 3), wide([0.19], 6)], False, False),  # too few heads to say
        ([wide([0.2], 8), wide([0.19], 16, residual=1e-3)], False, False),  # memorised
        ([wide([0.2, 0.3], 8), wide([0.4, 0.19], 16)], False, True),
    ],
)
def test_what_many_heads_fit_no_better_than_few_is_a_misfit(groups, worth, misfits):
    least = [min(one.select_error for one in group) for group in groups]
    assert _worth_widening(least) is worth
    assert _misfits(groups, least) is misfits


def test_more_heads_are_tried_only_if_the_first_width_is_much_better_than_a_fit_before(rng) -> None:
    x = tokens(rng)[:300]
    y = np.tanh(x @ rng.standard_normal((DIM, DIM))) * x.mean(axis=1, keepdims=True)  # no attention layer
    whole = Problem(as_examples(x, y), Split.make(len(x)))
    found = search(whole, signals(whole), Tools(), before=1e-3)
    assert found.best is None
    assert len({entry["heads"] for entry in found.tried}) == 1


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
