"""Hostile problems for training: each tries to earn a claim that it must not get, or to hide a model that deserves one.

Every generator gives examples, held-out examples, fresh examples of the same distribution, and what must be true of the
result: `certified` (True, False, or None where both are right), `separable` (whether a margin may be reported), `refused`
(the message of the ValueError). Where the held-out examples were spoilt, `fresh` is what they pretend to stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlearn.data import TokenizedMixture

FRESH = 20_000
Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class TrainingProblem:
    """Examples to train on, examples kept apart, and what must be true of the result."""

    train: Pair
    test: Pair | None
    fresh: Pair
    certified: bool | None = None
    separable: bool | None = None
    refused: str | None = None
    radius: float | None = None
    options: dict[str, Any] = field(default_factory=dict)


def _mixture(rng: np.random.Generator, num: int, noise: float = 0.1) -> Pair:
    return TokenizedMixture(tokens=4, dim=6, noise=noise).sample(num, seed=int(rng.integers(2**31)))


def _random_tokens(rng: np.random.Generator, num: int) -> np.ndarray:
    return rng.standard_normal((num, 4, 6)) / 2


def _coins(rng: np.random.Generator, num: int, share: float = 0.5) -> np.ndarray:
    labels = np.where(rng.random(num) < share, 1.0, -1.0)
    labels[:2] = 1.0, -1.0
    return labels


def _split(x: np.ndarray, y: np.ndarray, train: int, test: int, **known: Any) -> TrainingProblem:
    """The first examples to train on, the next held out, the others fresh."""
    stop = train + test
    held_out = (x[train:stop], y[train:stop]) if test else None
    return TrainingProblem((x[:train], y[:train]), held_out, (x[stop:], y[stop:]), **known)


def learnable(rng: np.random.Generator) -> TrainingProblem:
    """Nothing hostile: it must be certified, or the power is gone."""
    return _split(*_mixture(rng, 300 + FRESH), 100, 200, certified=True, separable=True)


def learnable_in_float32(rng: np.random.Generator) -> TrainingProblem:
    x, y = _mixture(rng, 300 + FRESH)
    return _split(x.astype(np.float32), y, 100, 200, certified=True, separable=True)


def without_held_out(rng: np.random.Generator) -> TrainingProblem:
    return _split(*_mixture(rng, 100 + FRESH), 100, 0, certified=True, separable=True)


def coin_flips(rng: np.random.Generator) -> TrainingProblem:
    """Labels have nothing to do with the tokens: no bound can be below guessing."""
    x = _random_tokens(rng, 1700 + FRESH)
    return _split(x, _coins(rng, len(x)), 1500, 200, certified=False, separable=False)


def memorized_coin_flips(rng: np.random.Generator) -> TrainingProblem:
    """Few coin flips can be learned by heart: the training loss may fall, the error on new examples is a half."""
    x = _random_tokens(rng, 230 + FRESH)
    return _split(x, _coins(rng, len(x)), 30, 200, options={"max_steps": 400})


def leaked(rng: np.random.Generator) -> TrainingProblem:
    """Most held-out examples stand in training, whose coin flips are learned by heart."""
    problem = memorized_coin_flips(rng)
    (x, y), (new_x, new_y) = problem.train, problem.test
    test = np.concatenate([x, x, x, new_x[:20]]), np.concatenate([y, y, y, new_y[:20]])
    return TrainingProblem(problem.train, test, problem.fresh, options=problem.options)


def copied(rng: np.random.Generator) -> TrainingProblem:
    """Ten held-out examples, a hundred copies of each."""
    problem = _split(*_mixture(rng, 110 + FRESH, noise=0.9), 100, 10)
    test = tuple(np.repeat(part, 100, axis=0) for part in problem.test)
    return TrainingProblem(problem.train, test, problem.fresh)


def one_contradiction(rng: np.random.Generator) -> TrainingProblem:
    """One sequence has both labels among two thousand: no direction separates, and the rest is learned all the same."""
    x, y = _mixture(rng, 2200 + FRESH)
    x[1999], y[1999] = x[0], -y[0]
    return _split(x, y, 2000, 200, certified=True, separable=False)


def badly_wrong(rng: np.random.Generator) -> TrainingProblem:
    """Two in a hundred examples are long and have the other label; 60 are held out, and R is known."""
    x, y = _mixture(rng, 160 + FRESH)
    wrong = rng.random(len(x)) < 0.02
    wrong[:100] = False
    x[wrong] *= 5
    y[wrong] *= -1
    return _split(x, y, 100, 60, radius=float(np.linalg.norm(x, axis=2).max()))


def rare_and_common(rng: np.random.Generator) -> TrainingProblem:
    """One sequence makes up a tenth of the distribution, never comes in training, and has the wrong label."""
    x, y = _mixture(rng, 420 + FRESH)
    same = rng.random(len(x)) < 0.1
    same[:20] = False
    x[same], y[same] = x[0] * 1.001, -y[0]
    return _split(x, y, 20, 400)


def noisy_labels(rng: np.random.Generator) -> TrainingProblem:
    """A tenth of the labels are wrong, in training and afterwards."""
    x, y = _mixture(rng, 700 + FRESH)
    y[rng.random(len(y)) < 0.1] *= -1
    return _split(x, y, 500, 200)


def nearly_one_class(rng: np.random.Generator) -> TrainingProblem:
    """Nineteen labels in twenty are equal and nothing else is to be learned: a loss of 0.3 is no achievement."""
    x = _random_tokens(rng, 1700 + FRESH)
    return _split(x, _coins(rng, len(x), 0.95), 1500, 200, certified=False)


def one_class(rng: np.random.Generator) -> TrainingProblem:
    x = _random_tokens(rng, 50 + FRESH)
    return _split(x, np.ones(len(x)), 50, 0, refused="y: must hold both labels")


def constant_tokens(rng: np.random.Generator) -> TrainingProblem:
    """Every sequence is the same: nothing separates, and no held-out sequence is new."""
    x = np.broadcast_to(rng.standard_normal((1, 4, 6)), (300 + FRESH, 4, 6)).copy()
    return _split(x, _coins(rng, len(x)), 100, 200, certified=False, separable=False)


def zero_tokens(rng: np.random.Generator) -> TrainingProblem:
    x = np.zeros((300 + FRESH, 4, 6))
    return _split(x, _coins(rng, len(x)), 100, 200, certified=False, separable=False)


def huge_tokens(rng: np.random.Generator) -> TrainingProblem:
    """Tokens a thousand times too long: attention is one-hot as soon as the weights move."""
    x, y = _mixture(rng, 300 + FRESH)
    return _split(1e3 * x, y, 100, 200)


def tiny_tokens(rng: np.random.Generator) -> TrainingProblem:
    x, y = _mixture(rng, 300 + FRESH)
    return _split(1e-4 * x, y, 100, 200)


def four_examples(rng: np.random.Generator) -> TrainingProblem:
    """Hardly any data: trained at once, wrong afterwards."""
    x, y = _mixture(rng, 24 + FRESH, noise=0.9)
    y[:2] = 1.0, -1.0
    return _split(x, y, 4, 20)


TRAINING: dict[str, Callable[[np.random.Generator], TrainingProblem]] = {
    make.__name__: make
    for make in (
        learnable,
        learnable_in_float32,
        without_held_out,
        coin_flips,
        memorized_coin_flips,
        leaked,
        copied,
        one_contradiction,
        badly_wrong,
        rare_and_common,
        noisy_labels,
        nearly_one_class,
        one_class,
        constant_tokens,
        zero_tokens,
        huge_tokens,
        tiny_tokens,
        four_examples,
    )
}
