"""Guess: a number of heads that the moment suggests is tried, kept when the fit is exact and forgotten when it is not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, data, distance, recover
from attnlearn.engine import Tools
from attnlearn.recovery.spectral._guess import guess, guessable, last_step
from attnlearn.recovery.spectral._state import State

from ._problems import problem, run

DIM, HEADS, NUM = 52, 4, 480  # more directions than the search takes


def noise(rng: np.random.Generator, count: int) -> np.ndarray:
    """Values that follow each other within half a per cent to one per cent."""
    return np.cumprod(1 - rng.uniform(0.002, 0.01, count))


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_the_last_step_is_where_noise_begins(rng, heads) -> None:
    values = np.concatenate([np.linspace(1.4, 1.1, heads), noise(rng, 16)])
    assert last_step(values) == heads


def test_noise_has_no_step(rng) -> None:
    assert last_step(noise(rng, 24)) is None
    assert last_step(noise(rng, 3)) is None


def test_heads_a_little_above_the_noise_are_recovered(seed) -> None:
    truth = AttentionLayer.random(HEADS, DIM, rank=4, seed=seed)
    x = data.Gaussian(8, DIM).sample(NUM, seed=seed + 1)
    solution = recover(x, truth(x))
    assert solution.certified
    assert solution.phase("unmix").evidence["guessed"] == HEADS
    assert distance(solution.layer, truth).max < 1e-8


def test_a_guess_beside_noise_is_kept_and_not_certified(seed) -> None:
    truth = AttentionLayer.random(HEADS, DIM, rank=4, seed=seed)
    x = data.Gaussian(8, DIM).sample(NUM, seed=seed + 1)
    y = truth(x)
    y += 1e-3 * y.std() * np.random.default_rng(seed).standard_normal(y.shape)
    solution = recover(x, y, raise_on_failure=False)
    assert solution.outcome is Outcome.BELOW_NOISE_FLOOR
    assert solution.phase("unmix").evidence["guessed"] == HEADS
    assert distance(solution.layer, truth).max < 0.05


def test_a_guess_that_does_not_fit_is_no_answer(rng, seed) -> None:
    truth = AttentionLayer.random(3, 10, seed=seed)
    one = problem(truth, rng.standard_normal((2_000, 5, 10)))
    state, _ = run(one, "moment", seed=seed)
    values = state.floor * np.concatenate([[1.5], noise(rng, len(state.singular_values) - 1)])
    state = dataclasses.replace(state, singular_values=values, stopped="TOO_FEW_EXAMPLES")
    found, evidence = guess(one, state, Tools(seed=seed), last_step(values))
    assert found is None
    assert evidence["guessed"] == 1
    assert evidence["guess_error"] > 1e-3


def test_no_guess_beside_a_given_number(rng) -> None:
    state = State(singular_values=noise(rng, 16), stopped="TOO_FEW_EXAMPLES")
    x = rng.standard_normal((20, 3, 4))
    layer = AttentionLayer.random(2, 4)
    assert guessable(problem(layer, x), state)
    assert not guessable(problem(layer, x, num_heads=2), state)
