"""The refine phase of a run: starts with too many heads or too large a rank, and heads that are really close."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance, recover
from attnlearn.data import as_examples
from attnlearn.engine import Engine, Progress, Tools
from attnlearn.recovery._refining import answer, refine_phase
from attnlearn.recovery.spectral._state import Problem, State
from attnlearn.solve._split import Split

DIM, TOKENS, NUM = 6, 4, 600


@pytest.fixture
def truth(seed) -> AttentionLayer:
    return AttentionLayer.random(2, DIM, seed=seed, bias=True)


def refined(truth: AttentionLayer, start: AttentionLayer, seed: int, rank: int | None = None) -> State:
    x = np.random.default_rng([seed, 3]).standard_normal((NUM, TOKENS, DIM))
    problem = Problem(as_examples(x, truth(x)), Split.make(NUM, seed=seed))
    state = State(causal=False, rank=rank, **start.parameters._asdict())
    tools = Tools(Engine.parse(None), Progress.make("quiet"), seed)
    return refine_phase(problem, state, tools)[0]


def test_a_head_that_was_split_is_one_again(truth, seed) -> None:
    half = truth.w.copy()
    half[0] /= 2
    start = AttentionLayer(
        np.concatenate([truth.theta, 1.001 * truth.theta[:1]]),
        np.concatenate([half, half[:1]]),
        np.concatenate([truth.query_bias, truth.query_bias[:1]]),
        truth.output_bias,
    )
    found = answer(refined(truth, start, seed))
    assert found.num_heads == 2
    assert distance(found, truth).max < 1e-9


def test_heads_that_differ_by_little_are_kept(truth, seed) -> None:
    rng = np.random.default_rng([seed, 4])
    theta = np.concatenate([truth.theta, truth.theta[:1] + 1e-5 * rng.standard_normal((1, DIM, DIM))])
    close = AttentionLayer(
        theta,
        np.concatenate([truth.w, rng.standard_normal((1, DIM, DIM))]),
        np.concatenate([truth.query_bias, truth.query_bias[:1]]),
        truth.output_bias,
    )
    assert answer(refined(close, close, seed)).num_heads == 3


def test_a_rank_that_was_too_large_is_lowered_for_the_certificate_too(seed) -> None:
    low = AttentionLayer.random(2, DIM, rank=2, seed=seed, bias=True)
    noise = np.random.default_rng([seed, 5]).standard_normal(low.theta.shape)
    state = refined(low, low.replace(theta=low.theta + 1e-2 * noise), seed, rank=4)
    assert state.rank == 2
    assert distance(answer(state), low).max < 1e-9


def test_heads_that_the_moment_shows_twice_are_taken_for_one(seed: int, rng) -> None:
    """Heads of rank one and their swaps look alike: a start with copies of them is refined without the copies."""
    truth, x = AttentionLayer.random(2, 16, rank=1, seed=seed), rng.uniform(-1.7, 1.7, (8_000, 6, 16))
    found = recover(x, truth(x))
    phases = {phase.name: phase.evidence for phase in found.phases}
    assert found.certified
    assert distance(found.layer, truth).max < 1e-9
    assert phases["count"]["heads"] > 2
    assert len(phases["refine"]["tried"]) <= 3  # not those of a fit that creeps: a larger rank, every example
    assert len(phases["refine"]["steps"]) < 20


def test_true_heads_that_are_close_are_told_apart_all_the_same(seed: int, rng) -> None:
    layer = AttentionLayer.random(2, 8, seed=seed)
    theta = np.stack([layer.theta[0], layer.theta[0] + 0.2 * layer.theta[1]])
    truth, x = layer.replace(theta=theta), rng.standard_normal((8_000, 5, 8))
    found = recover(x, truth(x))
    assert found.certified
    assert found.layer.num_heads == 2
    assert distance(found.layer, truth).max < 1e-8


def test_a_rank_that_is_low_up_to_rounding_is_no_noise(seed: int, rng) -> None:
    """Weights that were once multiplied in float32: the fit of low rank stalls at 1e-8, and the whole Theta is exact."""
    truth = AttentionLayer.random(2, 12, rank=2, seed=seed).astype(np.float32).astype(np.float64)
    x = rng.standard_normal((2_000, 5, 12))
    found = recover(x, truth(x))
    assert found.certified
    assert distance(found.layer, truth).max < 1e-10


@pytest.mark.parametrize("number", range(3))
def test_a_target_that_only_the_average_meets_is_passed_by_whole_matrices_too(seed: int, number: int) -> None:
    """A rank that is too small is given up; on tokens with heavy tails the worst example then still misses the target."""
    truth = AttentionLayer.random(2, 8, rank=6, seed=seed + number, bias=True)
    x = np.random.default_rng(seed + number).standard_t(2.2, size=(1_500, 4, 8))
    start = truth.replace(theta=1.05 * truth.theta)
    problem = Problem(as_examples(x, truth(x)), Split.make(len(x), seed=seed), target=1e-6)
    state = State(causal=False, rank=5, **start.parameters._asdict())
    assert refine_phase(problem, state, Tools(seed=seed))[1]["enough"]
