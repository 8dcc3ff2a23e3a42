"""Condense: a wide fit of weak attention is a mixture of the true heads, whose number and span it shows all the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance, recover
from attnlearn._attention import Parameters
from attnlearn.engine import Tools
from attnlearn.recovery.wide._condense import condensed, mixed_heads, spanned
from attnlearn.recovery.wide._prune import Pruner, WideFit
from attnlearn.recovery.wide._starts import Width, random_heads
from attnlearn.solve._rank import largest_fall
from tests.recovery._problems import made_problem, made_signals, problem, signals

DIM, TOKENS, NUM, HEADS, RANK, WIDE = 8, 6, 3000, 3, 3, 8


def with_places(rng: np.random.Generator) -> np.ndarray:
    """Independent tokens, every position with a mean of its own."""
    return rng.standard_normal((NUM, TOKENS, DIM)) + 2 * rng.standard_normal((TOKENS, DIM))


def words(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((30, DIM))[rng.integers(30, size=(NUM, TOKENS))]


TOKENS_OF = {"places": with_places, "words": words}


def weak_layer(seed: int, scale: float = 0.02, rank: int | None = RANK) -> AttentionLayer:
    return AttentionLayer.random(HEADS, DIM, rank=rank, scale=scale, seed=seed)


def wide_fit(kind: str, seed: int, scale: float = 0.02, rank: int | None = RANK):
    """Weak attention: the truth, a pruner of its examples, and a wide fit of eight random heads."""
    truth = weak_layer(seed, scale, rank)
    whole, tools = problem(truth, TOKENS_OF[kind](np.random.default_rng(seed))), Tools(seed=seed)
    prunes = Pruner(whole, signals(whole), tools)
    start = random_heads(prunes.signals, DIM, Width(WIDE, None), tools.rng(f"search {WIDE} None"))
    return truth, prunes, prunes.refined(start, None, prunes.signals.found)


def condense(whole, seen, layer, rng):
    """The condensed start of a layer; None where its heads are no mixtures of fewer."""
    mixed = mixed_heads(whole, seen, layer)
    return None if mixed is None else condensed(whole, seen, layer, mixed, rng)


@pytest.mark.parametrize("heads", [4, 20, 40])
def test_the_span_of_the_factors_is_that_of_the_matrix(heads, rng):
    left, right = rng.standard_normal((heads, 6, 5)), rng.standard_normal((heads, 5, 3))
    found = spanned(left, right)
    rank = min(heads, 15)  # as many as the smaller side has dimensions, where there are more heads
    whole = np.einsum("iab,icd->abcd", left, right).reshape(30, 15)
    np.testing.assert_allclose(found.values, np.linalg.svd(whole, compute_uv=False)[:rank], rtol=1e-12)
    back = np.einsum("l,lab,lcd->abcd", found.values, found.left, found.right).reshape(30, 15)
    np.testing.assert_allclose(back, whole, atol=1e-12)
    for side in (found.left, found.right):
        flat = side.reshape(rank, -1)
        np.testing.assert_allclose(flat @ flat.T, np.eye(rank), atol=1e-12)


def test_mixtures_of_heads_have_their_span_and_no_more(rng):
    left, right = rng.standard_normal((3, 6, 5)), rng.standard_normal((3, 5, 4))
    mixing = rng.standard_normal((7, 3))
    values = rng.standard_normal((3, 7))  # seven heads that sum up to some mixture of the three
    found = spanned(np.tensordot(mixing, left, 1), np.tensordot(values.T, right, 1))
    assert largest_fall(found.values, 10.0) == 3
    assert found.values[3] < 1e-12 * found.values[0]
    inside = found.left[:3].reshape(3, -1)
    flat = left.reshape(3, -1)
    np.testing.assert_allclose(flat @ inside.T @ inside, flat, atol=1e-10)


@pytest.mark.parametrize(
    ("values", "least", "expected"),
    [
        ([3.0, 2.0, 0.1, 0.09], 10.0, 2),
        ([3.0, 2.0, 1.0], 10.0, None),
        ([3.0, 0.3], 10.0, 1),
        ([3.0, 0.31], 10.0, None),
        ([3.0, 0.2, 0.001], 2.0, 2),  # the largest, not the first
        ([3.0, 2.0, 0.0, 0.0], 10.0, 2),
        ([3.0], 10.0, None),
        ([], 10.0, None),
    ],
)
def test_values_stand_before_their_largest_fall(values, least, expected):
    assert largest_fall(np.array(values), least) == expected


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", TOKENS_OF)
def test_a_wide_fit_of_weak_attention_is_condensed_to_the_true_heads(kind, number, seed):
    truth, prunes, wide = wide_fit(kind, number)
    assert wide.layer.num_heads == WIDE
    assert wide.select_error < prunes.signals.misfit
    rng = np.random.default_rng(seed)
    start, rank = condense(prunes.problem, prunes.signals, wide.layer, rng)
    assert (start.num_heads, rank) == (HEADS, RANK)
    assert not start.w.any()  # the fit finds them
    found = prunes.refined(start, rank, 1e-9)
    assert found.select_error < 1e-6
    assert distance(found.layer, truth).max < 0.05


@pytest.mark.parametrize("kind", TOKENS_OF)
def test_heads_of_full_rank_are_found_from_the_condensed_start(kind, seed):
    """Their rank is only guessed, and may be guessed too small."""
    truth, prunes, wide = wide_fit(kind, seed, scale=0.05, rank=None)
    start, _ = condense(prunes.problem, prunes.signals, wide.layer, np.random.default_rng(seed))
    assert start.num_heads == HEADS
    found = prunes.refined(start, None, 1e-9)
    assert found.select_error < prunes.signals.found
    solution = recover(
        TOKENS_OF[kind](np.random.default_rng(seed)), prunes.problem.examples.take(np.arange(NUM)).y
    )
    assert solution.certified
    assert distance(solution.layer, truth).max < 1e-9


def test_a_given_number_is_what_is_left_and_one_as_large_as_the_fit_is_no_condensing(seed):
    _, prunes, wide = wide_fit("places", seed)
    for given in (2, 4):
        whole = dataclasses.replace(prunes.problem, num_heads=given)
        start, _ = condense(whole, prunes.signals, wide.layer, np.random.default_rng(seed))
        assert start.num_heads == given
    whole = dataclasses.replace(prunes.problem, num_heads=WIDE)
    assert condense(whole, prunes.signals, wide.layer, np.random.default_rng(seed)) is None


def test_no_number_is_clear_where_every_head_is_needed(rng, seed):
    layer = AttentionLayer.random(4, 5, seed=seed)
    assert condense(made_problem(), made_signals(), layer, rng) is None


def test_causal_layers_stay_causal(seed):
    rng = np.random.default_rng(seed)
    truth = AttentionLayer.random(2, DIM, scale=0.05, causal=True, seed=seed)
    whole = problem(truth, with_places(rng))
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0][:, :2]
    theta, w = np.tensordot(turn, truth.theta, 1), np.tensordot(turn, truth.w, 1)
    mixed = AttentionLayer(theta, w, output_bias=truth.output_bias, causal=True)
    start, _ = condense(whole, signals(whole), mixed, rng)
    assert start.causal
    assert start.num_heads == 2


def test_condensing_is_tried_first_where_no_head_seems_needless(seed, monkeypatch):
    _, prunes, wide = wide_fit("places", seed)
    everything = np.arange(WIDE)
    monkeypatch.setattr(prunes, "remaining", lambda wide, heads: [everything, everything[:5]])
    sizes = [(start.num_heads, rank) for start, rank in prunes.starts(wide)]
    assert sizes == [(HEADS, RANK), (HEADS, None), (WIDE, None), (5, None)]


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("places", 0),
        ("places", 1),
        ("words", 0),
        ("places", 2),
        ("words", 1),
        ("words", 2),
    ],
)
def test_what_is_left_of_a_wide_fit_of_weak_attention_is_the_true_number_of_heads(kind, number):
    _, prunes, wide = wide_fit(kind, number)
    found = prunes.without_needless(wide)
    assert isinstance(found, WideFit)
    assert found.layer.num_heads == HEADS
    assert found.select_error <= max(prunes.signals.found, 2 * wide.select_error)


def few_words(number: int) -> tuple[AttentionLayer, np.ndarray]:
    """Four heads on seven words in nine dimensions: on so few words heads can share their work differently for each query."""
    words = np.random.default_rng(number).standard_normal((7, 9))
    index = np.random.default_rng([number, 1]).integers(7, size=(6000, 5))
    return AttentionLayer.random(4, 9, seed=number), words[index]


def sharing(truth: AttentionLayer, x: np.ndarray, white) -> AttentionLayer:
    """The same function with six heads: two of them stand in for head 0 on some words and for head 1 on the others."""
    inside = white.enter(truth.parameters)
    words = np.unique(x.reshape(-1, x.shape[-1]), axis=0)
    seen = np.column_stack([white.tokens(words), np.ones(len(words))])
    scores = seen @ np.concatenate(
        [inside.theta, inside.query_bias[:, None]], axis=1
    )  # by head, word, direction
    first = np.arange(len(words))[:, None] < len(words) // 2
    apart = np.stack([np.where(first, scores[0], scores[1]), np.where(first, scores[1], scores[0])])
    back = np.linalg.solve(seen, np.concatenate([scores, apart]))
    shared = np.ones_like(inside.w[:1])
    w = np.concatenate([inside.w[:2] - shared, inside.w[2:], shared, shared])
    return AttentionLayer(*white.leave(Parameters(back[:, :-1], w, back[:, -1], inside.output_bias)))


def test_heads_that_share_their_work_word_by_word_are_mixtures_of_the_true_heads(seed):
    truth, x = few_words(seed)
    whole = problem(truth, x)
    seen = signals(whole)
    wide = sharing(truth, x, seen.white)
    np.testing.assert_allclose(wide(x), truth(x), atol=1e-8)
    mixed = mixed_heads(whole, seen, wide)
    assert (wide.num_heads, mixed.heads) == (6, 4)
    assert mixed.span.values[4] < 1e-8 * mixed.span.values[0]
    assert mixed_heads(whole, seen, truth) is None


def test_four_heads_on_seven_words_are_recovered():
    truth, x = few_words(4)
    found = recover(x, truth(x), raise_on_failure=False)
    assert found.certified
    assert found.layer.num_heads == 4


def test_weak_attention_is_recovered(seed):
    truth, x = weak_layer(seed), with_places(np.random.default_rng(seed))
    found = recover(x, truth(x), raise_on_failure=False)
    assert found.certified
    assert found.layer.num_heads == HEADS
    assert distance(found.layer, truth).max < 1e-9
