"""The hostile suite on tokens that the moment does not model: words of a list, words with places behind LayerNorm, skewed ones,
and those with heavy tails.

They are what recorded activations look like, what `recover` searches from random starts, or of which it looks at the calm ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnlearn import AttentionLayer
from tests.problems import _teachers as teachers
from tests.problems._problem import FIT_FAILED, WEAK, Problem

NUM = 3_000
NOTHING_FOUND = FIT_FAILED | WEAK | {"TOKENS_DEGENERATE"}


def _words(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    return rng.standard_normal((3 * d, d))[rng.integers(3 * d, size=(n, k))]


def _placed(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    x = _words(rng, n, k, d) + 0.7 * rng.standard_normal((k, d))
    x -= x.mean(axis=2, keepdims=True)
    return x / x.std(axis=2, keepdims=True)


def _skewed(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    return np.exp(0.7 * rng.standard_normal((n, k, d))) @ rng.standard_normal((d, d)) / np.sqrt(2 * d)


def _heavy(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    return rng.standard_t(rng.uniform(2.5, 8.0), size=(n, k, d)) @ rng.standard_normal((d, d)) / np.sqrt(d)


TOKENS = {"words": _words, "places": _placed, "skewed": _skewed, "heavy": _heavy}


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(6, 21)), int(rng.integers(3, 9)), int(rng.integers(1, 11))


def _layer(rng: np.random.Generator, d: int, m: int) -> AttentionLayer:
    rank = int(rng.choice([min(2, d), d // 2, d]))
    scale, causal = float(rng.choice([0.5, 1.0, 2.0])), bool(rng.random() < 0.25)
    return AttentionLayer.random(
        m, d, rank=rank, scale=scale, bias=True, seed=int(rng.integers(2**31)), causal=causal
    )


def _problem(
    name: str,
    right: frozenset[str],
    rng: np.random.Generator,
    truth: Callable[[AttentionLayer], AttentionLayer] | None = None,
    outputs: Callable[[np.ndarray, AttentionLayer], np.ndarray] | None = None,
    noise: float = 0.0,
) -> Problem:
    """A random layer, as `truth` changes it, on tokens of a random kind; or what `outputs` makes of both, which is no layer."""
    d, k, m = _shape(rng)
    kind = str(rng.choice(list(TOKENS)))
    x = TOKENS[kind](rng, 2 * NUM, k, d)
    layer = _layer(rng, d, m)
    layer = layer if truth is None else truth(layer)
    y = layer(x) if outputs is None else outputs(x, layer)
    seen = y + noise * y.std() * rng.standard_normal(y.shape)
    behind = layer if outputs is None else None
    return Problem(f"{name}, {kind}", x[:NUM], seen[:NUM], behind, right, (x[NUM:], y[NUM:]))


def generic(rng):
    return replace(_problem("layer", frozenset({"RECOVERED", "NOT_ESTABLISHED"}), rng), identifiable=True)


def faint(rng):
    size = float(10.0 ** rng.uniform(-6, -0.5))

    def smaller(layer: AttentionLayer) -> AttentionLayer:
        w = layer.w.copy()
        w[0] *= size
        return layer.replace(w=w)

    return _problem("faint head", FIT_FAILED | {"RECOVERED"}, rng, smaller)


def noisy(rng):
    level = float(10.0 ** rng.uniform(-6, -1.5))
    return _problem("noise", NOTHING_FOUND | {"HEADS_INDISTINGUISHABLE", "RECOVERED"}, rng, noise=level)


def residual(rng):
    return _problem("residual", NOTHING_FOUND, rng, outputs=lambda x, layer: x + layer(x))


def perceptron(rng):
    return _problem("perceptron", NOTHING_FOUND, rng, outputs=lambda x, _: teachers.mlp(x, rng))


def two_layers(rng):
    def twice(x: np.ndarray, layer: AttentionLayer) -> np.ndarray:
        return _layer(rng, layer.dim, layer.num_heads)(layer(x))

    return _problem("two layers", NOTHING_FOUND, rng, outputs=twice)


UNMODELLED: dict[str, Callable[[np.random.Generator], Problem]] = {
    "layer on recorded-like tokens": generic,
    "faint head on recorded-like tokens": faint,
    "noise on recorded-like tokens": noisy,
    "residual on recorded-like tokens": residual,
    "perceptron on recorded-like tokens": perceptron,
    "two layers on recorded-like tokens": two_layers,
}
