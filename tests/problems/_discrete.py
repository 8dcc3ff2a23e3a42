"""Tokens of few values, and words or directions that a sample hardly holds.

On few values saturated heads can cancel on every possible input. No data show that, so a claim about layers in general
position is excused there; a word that was never seen is excused by nothing but the fraction of inputs that a claim names.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._problem import FOUND, GENERAL_POSITION, HONEST, Problem, from_tokens, random_layer

CERTIFIED_OR_NOT = HONEST | {"SATURATED"}


def _joined(layer: AttentionLayer, theta: list[np.ndarray], w: list[np.ndarray]) -> AttentionLayer:
    bias = np.concatenate([layer.query_bias, np.zeros((len(theta), layer.dim))])
    return AttentionLayer(
        np.concatenate([layer.theta, theta]), np.concatenate([layer.w, w]), bias, layer.output_bias
    )


def _cancelling(name: str, rng: np.random.Generator, values: list[float]) -> Problem:
    """Two further heads, each plainly visible, whose scores are so steep that both choose the same key on every input."""
    d, k, m = int(rng.integers(6, 10)), int(rng.integers(4, 6)), int(rng.integers(1, 3))
    steep = 80.0 * rng.integers(-2, 3, (d, d))
    w = rng.standard_normal((d, d)) / 3
    layer = _joined(random_layer(rng, d, m), [steep, 2 * steep], [w, -w])
    return from_tokens(
        name,
        rng,
        layer,
        lambda g, n: g.choice(values, (n, k, d)),
        CERTIFIED_OR_NOT,
        n=5000,
        excuses=GENERAL_POSITION,
    )


def cancelling_signs(rng):
    return _cancelling("heads that cancel on signs", rng, [-1.0, 1.0])


def cancelling_integers(rng):
    return _cancelling("heads that cancel on integers", rng, [-2.0, -1.0, 0.0, 1.0, 2.0])


def integers(rng):
    d, k, m = int(rng.integers(5, 9)), int(rng.integers(3, 6)), int(rng.integers(1, 4))
    most = int(rng.integers(1, 5))
    return from_tokens(
        "integers",
        rng,
        random_layer(rng, d, m, scale=1.0),
        lambda g, n: g.integers(-most, most + 1, (n, k, d)).astype(float),
        FOUND | {"NOT_ESTABLISHED"},
        excuses=GENERAL_POSITION,
        identifiable=True,
    )


def rounded(rng):
    """Gaussian tokens on a grid, as of a sensor with few digits."""
    d, k, m = int(rng.integers(5, 9)), int(rng.integers(3, 6)), int(rng.integers(1, 4))
    step = float(10.0 ** rng.uniform(-3, 0))
    return from_tokens(
        "tokens on a grid",
        rng,
        random_layer(rng, d, m),
        lambda g, n: step * np.round(g.standard_normal((n, k, d)) / step),
        FOUND | {"NOT_ESTABLISHED"},
        excuses=GENERAL_POSITION,
        identifiable=True,
    )


def small_vocabulary(rng):
    """Sequences over three to five words: many layers are one function there."""
    d, k, m = 4, int(rng.integers(3, 5)), int(rng.integers(1, 3))
    words = rng.standard_normal((int(rng.integers(3, 6)), d))
    return from_tokens(
        "three to five words",
        rng,
        random_layer(rng, d, m),
        lambda g, n: words[g.integers(len(words), size=(n, k))],
        HONEST,
        n=2000,
        excuses=GENERAL_POSITION,
    )


def one_hot(rng):
    """Words as unit vectors: tokens lie on a simplex, and nothing but the words' own table is seen."""
    d, k, m = int(rng.integers(5, 9)), int(rng.integers(3, 6)), int(rng.integers(1, 3))
    return from_tokens(
        "one-hot words",
        rng,
        random_layer(rng, d, m, scale=4.0),
        lambda g, n: np.eye(d)[g.integers(d, size=(n, k))],
        HONEST,
        n=3000,
        excuses=GENERAL_POSITION,
    )


def checked_signs(rng):
    """Signs of which the last is the product of the others, as a parity bit."""
    d, k, m = int(rng.integers(5, 9)), int(rng.integers(3, 6)), int(rng.integers(1, 4))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.choice([-1.0, 1.0], (n, k, d))
        x[..., -1] = x[..., :-1].prod(axis=2)
        return x

    # Sixteen words in sequences of three make 4,096: sequences that are copies of others are no evidence, and may be too many.
    right = FOUND | {"NOT_ESTABLISHED", "TOO_FEW_EXAMPLES"}
    return from_tokens(
        "signs with a check", rng, random_layer(rng, d, m), tokens, right, excuses=GENERAL_POSITION
    )


def _hidden(rng: np.random.Generator, d: int, m: int) -> AttentionLayer:
    """A layer that does not look in the last direction, and one more head that looks there alone."""
    layer = random_layer(rng, d, m, bias=False)
    away = np.diag([1.0] * (d - 1) + [0.0])
    last = np.zeros((d, d))
    last[-1] = rng.standard_normal(d)
    layer = layer.replace(theta=away @ layer.theta @ away, w=away @ layer.w)
    return _joined(layer, [rng.standard_normal((d, d)) / 4], [last])


def rare_direction(rng):
    """One token in 1e3 to 1e6 has a part in a direction of its own, where a head of its own reads."""
    d, k, m = int(rng.integers(5, 9)), int(rng.integers(4, 6)), int(rng.integers(1, 3))
    chance = float(10.0 ** rng.uniform(-6, -3))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.standard_normal((n, k, d))
        x[..., -1] = 3.0 * (g.random((n, k)) < chance)
        return x

    return from_tokens("rare direction", rng, _hidden(rng, d, m), tokens, HONEST, n=5000)


def rare_word(rng):
    """Words of a list, one of them with a chance of 1e-6 to 1e-3, a direction and a head of its own."""
    d, k, m = int(rng.integers(5, 8)), int(rng.integers(4, 6)), int(rng.integers(1, 3))
    chance = float(10.0 ** rng.uniform(-6, -3))
    words = np.concatenate([rng.standard_normal((6 * d, d)) * (np.arange(d) < d - 1), 3.0 * np.eye(d)[-1:]])

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        index = np.where(g.random((n, k)) < chance, len(words) - 1, g.integers(len(words) - 1, size=(n, k)))
        return words[index]

    right = HONEST
    return from_tokens("rare word", rng, _hidden(rng, d, m), tokens, right, n=5000)


DISCRETE: dict[str, Callable[[np.random.Generator], Problem]] = {
    "cancelling on signs": cancelling_signs,
    "cancelling on integers": cancelling_integers,
    "integers": integers,
    "grid": rounded,
    "few words": small_vocabulary,
    "one-hot": one_hot,
    "checked signs": checked_signs,
    "rare direction": rare_direction,
    "rare word": rare_word,
}
