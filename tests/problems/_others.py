"""Problems for `compress`, where C1 is the only claim, and for sculpting, which wants many examples of two heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._plain import forward
from tests.problems._problem import FOUND, WITHHELD, Fresh, Problem, from_tokens, random_layer

COMPRESSED = frozenset({"COMPRESSED", "NOT_ESTABLISHED", "TOO_FEW_EXAMPLES"})


def _compress(
    name: str,
    rng: np.random.Generator,
    layer: AttentionLayer,
    tokens: Callable[[np.random.Generator, int], np.ndarray],
    copy: Callable[[np.ndarray], np.ndarray] = lambda u: u,
    different: int = 3000,
    keep: int = 2,
) -> Problem:
    """Half of the heads on tokens; fresh ones are drawn from the population behind them."""
    x, seed = copy(tokens(rng, different)), int(rng.integers(2**31))

    def draw(num: int, _: Any) -> Fresh:
        fresh = tokens(np.random.default_rng(seed), num)
        return Fresh(fresh, forward(layer, fresh))

    def call() -> Any:
        from attnlearn import compress

        return compress(layer, x, num_heads=keep, raise_on_failure=False, progress=False)

    return Problem(name, x, forward(layer, x), layer, COMPRESSED | {"REFUSED"}, draw=draw, call=call)


def _gaussian(k: int, d: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda g, n: g.standard_normal((n, k, d))


def _shape(rng: np.random.Generator) -> tuple[int, int]:
    return int(rng.integers(5, 9)), int(rng.integers(3, 6))


def plain(rng):
    d, k = _shape(rng)
    return _compress("compress", rng, random_layer(rng, d, 4), _gaussian(k, d))


def uneven(rng):
    """Half of the inputs are so small that a floor would forgive anything."""
    d, k = _shape(rng)
    small, tokens = float(10.0 ** rng.uniform(-8, -3)), _gaussian(k, d)

    def either(g: np.random.Generator, n: int) -> np.ndarray:
        return tokens(g, n) * np.where(g.random(n) < 0.5, 1.0, small)[:, None, None]

    return _compress("compress, uneven inputs", rng, random_layer(rng, d, 4, bias=False), either)


def copies(rng):
    """Few inputs, each many times, equal or jittered: the certify side was fitted."""
    d, k = _shape(rng)
    different, jitter = int(rng.integers(8, 30)), float(rng.choice([0.0, 1e-9, 1e-4]))

    def copy(u: np.ndarray) -> np.ndarray:
        x = np.tile(u, (3000 // len(u), 1, 1))
        return x + jitter * rng.standard_normal(x.shape)

    return _compress("compress, copies", rng, random_layer(rng, d, 4), _gaussian(k, d), copy, different)


def silent(rng):
    """A layer whose outputs vanish on some inputs."""
    d, k = _shape(rng)
    layer, tokens = random_layer(rng, d, 4, bias=False), _gaussian(k, d)

    def some(g: np.random.Generator, n: int) -> np.ndarray:
        return tokens(g, n) * (g.random(n) < 0.8)[:, None, None]

    return _compress("compress, silent inputs", rng, layer, some)


def _sculpt(name: str, rng: np.random.Generator, right: frozenset[str], tied: bool) -> Problem:
    d, k = int(rng.integers(6, 9)), 4
    layer = random_layer(rng, d, 2, scale=5.0, bias=False)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = g.standard_normal((n, k // 2, d))
        return np.concatenate([u, -u], axis=1) if tied else g.standard_normal((n, k, d))

    options = {"method": "sculpt"}
    return from_tokens(name, rng, layer, tokens, right, n=120_000, options=options, identifiable=not tied)


def sculpted(rng):
    return _sculpt("sculpting", rng, FOUND | {"NOT_ESTABLISHED"}, tied=False)


def sculpted_tied(rng):
    return _sculpt("sculpting antipodal tokens", rng, WITHHELD, tied=True)


COMPRESSING: dict[str, Callable[[np.random.Generator], Problem]] = {
    "compress": plain,
    "compress: uneven": uneven,
    "compress: copies": copies,
    "compress: silent": silent,
}
SCULPTING: dict[str, Callable[[np.random.Generator], Problem]] = {
    "sculpt": sculpted,
    "sculpt: antipodal": sculpted_tied,
}
