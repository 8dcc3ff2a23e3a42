"""The own token: with which multiple of itself it enters the outputs of attention layers, and of those with the tokens added."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, recover
from attnlearn.data import as_examples
from attnlearn.recovery._own_token import NONE, OwnToken, own_token
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._statistics import token_support
from attnlearn.solve._split import Split

from ._problems import signals

NUM, TOKENS, DIM = 600, 6, 8
KINDS = ("gaussian", "words with places", "layer-normed")
SEVERAL = range(4)


def tokens(kind: str, rng: np.random.Generator, num: int = NUM) -> np.ndarray:
    if kind == "gaussian":
        return rng.standard_normal((num, TOKENS, DIM))
    places = rng.standard_normal((TOKENS, DIM))
    if kind == "words with places":
        return rng.standard_normal((30, DIM))[rng.integers(30, size=(num, TOKENS))] + 0.7 * places
    x = rng.standard_normal((num, TOKENS, DIM)) * np.exp(0.5 * rng.standard_normal(DIM)) + places
    x -= x.mean(axis=2, keepdims=True)
    return x / x.std(axis=2, keepdims=True)


def layer(seed: int, own: float = 0.0, **options) -> AttentionLayer:
    """Three heads, which attend to their own token the more, the larger `own` is."""
    plain = AttentionLayer.random(3, DIM, seed=seed, **options)
    return plain.replace(theta=plain.theta + own * np.eye(DIM) / np.sqrt(DIM))


def problem(x: np.ndarray, y: np.ndarray, mask: np.ndarray | None = None) -> Problem:
    return Problem(as_examples(x, y, mask), Split.make(len(x)))


def looked(posed: Problem, causal: bool) -> OwnToken:
    return own_token(posed, causal, token_support(posed.examples, posed.split.fit))


def measured(x: np.ndarray, truth: AttentionLayer, times: float) -> OwnToken:
    """The signal of the layer with so many times the tokens added."""
    return looked(problem(x, truth(x) + times * x), truth.causal)


@pytest.mark.parametrize("own", [0.0, 2.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_were_added_are_seen_and_attention_is_not_taken_for_them(kind, causal, own, seed):
    for number in SEVERAL:
        rng = np.random.default_rng([seed, number])
        x, truth = tokens(kind, rng), layer(4 * seed + number, own, causal=causal)
        plain, added = (measured(x, truth, times) for times in (0.0, 1.0))
        assert abs(plain.multiple) < 0.4
        assert abs(plain.cosine) < 0.4
        assert not plain.residual
        assert 0.8 < added.multiple < 1.4
        assert added.cosine > 0.58
        assert added.residual
        # The regression is linear: what is added to the outputs is added to the multiple.
        assert added.multiple == pytest.approx(plain.multiple + 1, abs=1e-6)


@pytest.mark.parametrize("scale", [0.02, 0.3, 4.0, 20.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_signal_never_fires_on_plain_layers(kind, scale, seed):
    for number in range(6):
        rng = np.random.default_rng([seed, number])
        found = measured(tokens(kind, rng), layer(6 * seed + number, scale=scale), 0.0)
        assert not found.residual
        assert abs(found.multiple) < 0.3


@pytest.mark.parametrize(
    ("multiple", "cosine", "residual"),
    [
        (1.0, 1.0, True),
        (0.51, 0.51, True),
        (1.99, 0.6, True),
        (0.49, 0.9, False),
        (2.01, 0.9, False),  # a gain, not a skip
        (1.0, 0.49, False),
        (-1.0, -1.0, False),
    ],
)
def test_a_residual_is_about_the_identity(multiple, cosine, residual):
    assert OwnToken(multiple, cosine).residual is residual


@pytest.mark.parametrize("times", [-1.0, 0.2, 3.0])
def test_another_multiple_of_the_tokens_is_no_residual(times, rng, seed):
    found = measured(tokens("gaussian", rng), layer(seed), times)
    assert found.multiple == pytest.approx(times, abs=0.2)
    assert not found.residual


def test_a_map_of_the_own_token_that_is_no_identity_is_none(rng, seed):
    x, truth = tokens("gaussian", rng), layer(seed)
    turn = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    turn *= np.sign(np.trace(turn))
    found = looked(problem(x, truth(x) + x @ turn), False)
    assert abs(found.multiple) < 0.5
    assert not found.residual


def test_tokens_in_a_subspace_are_compared_with_the_identity_there(rng, seed):
    x = tokens("gaussian", rng)
    basis = np.linalg.qr(rng.standard_normal((DIM, 5)))[0]
    inside = x @ basis @ basis.T + 3.0
    assert measured(inside, layer(seed), 1.0).residual
    assert not measured(inside, layer(seed), 0.0).residual


def test_float32_tokens_are_measured_in_float64(rng, seed):
    x, truth = tokens("gaussian", rng).astype(np.float32), layer(seed).astype(np.float32)
    single, double = (looked(problem(*both), False) for both in _both_precisions(x, truth(x) + x))
    assert single == pytest.approx(double, abs=1e-5)
    assert single.residual


def _both_precisions(*arrays: np.ndarray) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    return arrays, tuple(array.astype(np.float64) for array in arrays)


def test_outputs_of_another_size_and_padded_tokens_give_none(rng, seed):
    x = tokens("gaussian", rng)
    assert looked(problem(x, layer(seed)(x)[..., :5]), False) is NONE
    mask = np.arange(TOKENS) < rng.integers(4, TOKENS + 1, NUM)[:, None]
    assert looked(problem(x, layer(seed)(x, mask) + x * mask[..., None], mask), False) is NONE
    assert not NONE.residual


def test_the_signals_carry_it_and_the_report_shows_it(rng, seed):
    x, truth = tokens("words with places", rng), layer(seed)
    for times in (0.0, 1.0):
        found = signals(problem(x, truth(x) + times * x))
        assert bool(found.residual) is bool(times)
        assert found.evidence()["own_token_enters"] == bool(times)


def test_only_the_fit_side_is_read(rng, seed):
    x, truth = tokens("gaussian", rng), layer(seed)
    whole = problem(x, truth(x) + x)
    moved = x.copy()
    moved[np.concatenate([whole.split.select, whole.split.certify])] = 1e3
    assert looked(problem(moved, truth(x) + x), False) == looked(whole, False)


def one_head_on_its_own_token(seed: int) -> AttentionLayer:
    """Attention to the own token with W = I, beside a usual head: to the signal the same as a skip."""
    usual = AttentionLayer.random(1, DIM, seed=seed)
    strong = np.concatenate([0.5 * np.eye(DIM)[None], usual.theta])
    return AttentionLayer(strong, np.concatenate([np.eye(DIM)[None], usual.w]))


@pytest.mark.slow
def test_a_head_that_copies_its_own_token_is_told_from_a_skip_by_the_fit(rng, seed):
    x = rng.standard_normal((30, DIM))[rng.integers(30, size=(2_000, 5))]
    truth = one_head_on_its_own_token(seed)
    assert signals(problem(x, truth(x))).residual
    found = recover(x, truth(x), raise_on_failure=False)
    assert "skipped" not in found.phase("residual connection").evidence
    assert found.outcome is Outcome.RECOVERED
    assert found.layer.num_heads == 2


@pytest.mark.parametrize("kind", ["words", "words with places"])
def test_a_residual_on_words_is_named_and_nothing_else_is_tried(kind, rng, seed):
    x = (
        tokens(kind, rng, 3_000)
        if kind != "words"
        else rng.standard_normal((30, DIM))[rng.integers(30, size=(3_000, 5))]
    )
    truth = layer(seed)
    found = recover(x, truth(x) + x, raise_on_failure=False)
    assert found.outcome is Outcome.NOT_ATTENTION
    assert found.stats["diagnosis"]["cause"] == "residual"
    ran = [phase.name for phase in found.phases if "skipped" not in phase.evidence]
    assert ran == ["signals", "residual connection"]
    assert recover(x, truth(x)).certified
