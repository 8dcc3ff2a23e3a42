"""Oracles for `extract` that do not always answer as the layer that they mostly are: by chance, by turns, by length, by company, or from memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.problems._oracles import NO_LAYER, NOISY, _layer, _problem, _read
from tests.problems._plain import forward
from tests.problems._problem import FOUND, Problem, random_layer


def two_layers(rng):
    """Sequences whose first coordinate is large are another layer's."""
    layer, limit = _layer(rng), float(rng.uniform(-1.0, 6.0))
    other = random_layer(rng, layer.dim, layer.num_heads)

    def oracle(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        return np.where(x[:, :1, :1] > limit, forward(other, x), forward(layer, x))

    return _problem("two layers by input", rng, layer, oracle)


def hashed(rng):
    """An error that is a function of the answer, and looks like noise."""
    layer, size = _layer(rng), float(10.0 ** rng.uniform(-11, -4))

    def oracle(x: np.ndarray) -> np.ndarray:
        y = forward(layer, np.asarray(x))
        return y + size * np.sin(1e9 * y)

    return _problem("errors that repeat", rng, layer, oracle, NOISY, layer)


def remembered(rng):
    """A sequence whose first token was asked before gets the answer of then."""
    layer, known = _layer(rng), {}

    def oracle(x: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(x, np.float64)
        y = forward(layer, x)
        return np.stack([known.setdefault((len(a), a[0].tobytes()), b) for a, b in zip(x, y, strict=True)])

    return _problem("stale answers", rng, layer, oracle, NO_LAYER | FOUND, layer)


def now_and_then(rng):
    """One answer of twenty to four hundred is one per cent too large."""
    layer, every, asked = _layer(rng), int(rng.integers(20, 400)), [0]

    def oracle(x: np.ndarray) -> np.ndarray:
        place = asked[0] + np.arange(len(x))
        asked[0] += len(x)
        return forward(layer, np.asarray(x)) * np.where(place % every == every - 1, 1.01, 1.0)[:, None, None]

    return _problem("wrong now and then", rng, layer, oracle)


def by_chance(rng):
    """One answer of ten to a thousand is a tenth too large, at random."""
    layer, share = _layer(rng), float(10.0 ** rng.uniform(-3, -1))
    drawn = np.random.default_rng(int(rng.integers(2**31)))

    def oracle(x: np.ndarray) -> np.ndarray:
        return forward(layer, np.asarray(x)) * np.where(drawn.random((len(x), 1, 1)) < share, 1.1, 1.0)

    return _problem("wrong by chance", rng, layer, oracle, NO_LAYER | FOUND, layer)


def multiples(rng):
    """Scores are a little larger where the length is a multiple of four."""
    layer = _layer(rng)
    return _problem(
        "other at multiples of four", rng, layer,
        lambda x: _read(layer, x, lambda scores: scores * (1.0 if scores.shape[-1] % 4 else 1.05)),
    )  # fmt: skip


def alone(rng):
    """A sequence that is asked alone is answered by another layer."""
    layer = _layer(rng)
    other = random_layer(rng, layer.dim, layer.num_heads)

    def oracle(x: np.ndarray) -> np.ndarray:
        return forward(other if len(x) == 1 else layer, np.asarray(x))

    return _problem("another layer when asked alone", rng, layer, oracle)


def merged(rng):
    """Equal tokens of a sequence are read once; no sequence that the claims speak of has any."""
    layer = _layer(rng)

    def oracle(x: np.ndarray) -> np.ndarray:
        answers = []
        for sequence in np.asarray(x, np.float64):
            different, places = np.unique(sequence, axis=0, return_inverse=True)
            answers.append(forward(layer, different[None])[0][places.ravel()])
        return np.stack(answers)

    return _problem("equal tokens count once", rng, layer, oracle, NO_LAYER | FOUND, layer)


FICKLE: dict[str, Callable[[np.random.Generator], Problem]] = {
    "oracle: two layers": two_layers,
    "oracle: repeated errors": hashed,
    "oracle: stale": remembered,
    "oracle: now and then": now_and_then,
    "oracle: by chance": by_chance,
    "oracle: multiples": multiples,
    "oracle: alone": alone,
    "oracle: equal tokens": merged,
}
