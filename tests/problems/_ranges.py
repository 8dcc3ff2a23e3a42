"""Numbers that are very large, very small or very close: tokens, outputs, heads, and differences of heads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._problem import (
    FOUND,
    HONEST,
    Problem,
    from_tokens,
    precision,
    random_layer,
)

EXTREME = HONEST | {"BELOW_NOISE_FLOOR", "NUMERICAL_FAILURE", "SATURATED", "REFUSED"}


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(5, 10)), int(rng.integers(3, 6)), int(rng.integers(1, 4))


def _gaussian(k: int, d: int, scale: float = 1.0) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda g, n: scale * g.standard_normal((n, k, d))


def _with(layer: AttentionLayer, theta: list[np.ndarray], w: list[np.ndarray], bias=None) -> AttentionLayer:
    bias = np.zeros((len(theta), layer.dim)) if bias is None else bias
    return AttentionLayer(
        np.concatenate([layer.theta, theta]),
        np.concatenate([layer.w, w]),
        np.concatenate([layer.query_bias, bias]),
        layer.output_bias,
    )


def large_tokens(rng):
    """Tokens of 1e2 to 1e10, with scores that are small enough, in either precision; the output bias is lost beside them."""
    d, k, m = _shape(rng)
    size = float(10.0 ** rng.uniform(2, 10))
    layer = random_layer(rng, d, m, bias=True)
    layer = layer.replace(theta=layer.theta / size**2, query_bias=layer.query_bias / size)
    return from_tokens("large tokens", rng, layer, _gaussian(k, d, size), EXTREME, dtype=precision(rng))


def far_tokens(rng):
    """Tokens far from the origin, so that a query bias and Theta are nearly the same."""
    d, k, m = _shape(rng)
    far = float(10.0 ** rng.uniform(1, 5)) * rng.standard_normal(d)
    layer = random_layer(rng, d, m, bias=True)
    tokens = _gaussian(k, d)
    return from_tokens(
        "tokens far away", rng, layer, lambda g, n: tokens(g, n) + far, EXTREME, dtype=precision(rng)
    )


def small_outputs(rng):
    """Outputs of 1e-100 to 1e-5, or of 1e5 to 1e100."""
    d, k, m = _shape(rng)
    size = float(10.0 ** (rng.uniform(5, 100) * rng.choice([-1, 1])))
    layer = random_layer(rng, d, m)
    layer = layer.replace(w=layer.w * size, output_bias=layer.output_bias * size)
    return from_tokens("tiny or huge outputs", rng, layer, _gaussian(k, d), EXTREME)


def uneven(rng):
    """Half of the sequences are a million times smaller than the others."""
    d, k, m = _shape(rng)
    small = float(10.0 ** rng.uniform(-9, -2))
    tokens = _gaussian(k, d)

    def either(g: np.random.Generator, n: int) -> np.ndarray:
        return tokens(g, n) * np.where(g.random(n) < 0.5, 1.0, small)[:, None, None]

    options = {"target": float(rng.choice([1e-2, 1e-3]))} if rng.random() < 0.5 else {}
    return from_tokens("uneven sequences", rng, random_layer(rng, d, m), either, EXTREME, options=options)


def close_heads(rng):
    """Two heads 1e-14 to 1e-4 apart."""
    d, k, m = _shape(rng)
    layer, gap = random_layer(rng, d, m), float(10.0 ** rng.uniform(-14, -4))
    theta = layer.theta[0] + gap * np.linalg.norm(layer.theta[0]) * rng.standard_normal((d, d)) / d
    layer = _with(layer, [theta], [rng.standard_normal((d, d)) / np.sqrt(d)], layer.query_bias[:1])
    return from_tokens("close heads", rng, layer, _gaussian(k, d), EXTREME, dtype=precision(rng))


def dipoles(rng):
    """Heads h apart with W / h and -W / h: together the derivative of a head."""
    d, k, m = _shape(rng)
    layer, h = random_layer(rng, d, m), float(10.0 ** rng.uniform(-6, -1))
    w, direction = rng.standard_normal((d, d)) / d, rng.standard_normal((d, d)) / d
    theta = 2 * rng.standard_normal((d, d)) / d
    layer = _with(layer, [theta, theta + h * direction], [w / h, -w / h])
    return from_tokens("dipole of heads", rng, layer, _gaussian(k, d), EXTREME)


def second_differences(rng):
    """Three heads in a row with W, -2 W, W over h squared."""
    d, k, _ = _shape(rng)
    layer, h = random_layer(rng, d, 1), float(10.0 ** rng.uniform(-3, -0.7))
    w, direction = rng.standard_normal((d, d)) / d, rng.standard_normal((d, d)) / d
    theta = 2 * rng.standard_normal((d, d)) / d
    steps = [theta + step * h * direction for step in (-1, 0, 1)]
    layer = _with(layer, steps, [w / h**2, -2 * w / h**2, w / h**2])
    return from_tokens("second difference of heads", rng, layer, _gaussian(k, d), EXTREME)


def nearly_cancelling(rng):
    """Two heads so steep that they choose the same key on nearly all inputs, with opposite W."""
    d, k, m = _shape(rng)
    steep = float(10.0 ** rng.uniform(3, 7)) * rng.standard_normal((d, d))
    w = rng.standard_normal((d, d)) / 3
    layer = _with(random_layer(rng, d, m), [steep, 2 * steep], [w, -w])
    return from_tokens("heads that cancel nearly always", rng, layer, _gaussian(k, d), EXTREME, n=5000)


def transposed(rng):
    """Heads that are each other's transposes, with equal or opposite W."""
    d, k, _ = _shape(rng)
    layer = random_layer(rng, d, 1, bias=False)
    w = float(rng.choice([-1.0, 1.0])) * layer.w[0]
    layer = _with(layer, [layer.theta[0].T], [w])
    return from_tokens("transposed heads", rng, layer, _gaussian(k, d), FOUND | HONEST, identifiable=True)


def opposite(rng):
    """Heads with Theta and -Theta, with equal or opposite W, and sometimes a flat one beside."""
    d, k, _ = _shape(rng)
    layer = random_layer(rng, d, 1, bias=False)
    sign = float(rng.choice([-1.0, 1.0]))
    theta, w = [-layer.theta[0]], [sign * layer.w[0]]
    if rng.random() < 0.5:
        theta, w = [*theta, np.zeros((d, d))], [*w, rng.standard_normal((d, d)) / d]
    layer = _with(layer, theta, w)
    return from_tokens("opposite heads", rng, layer, _gaussian(k, d), FOUND | HONEST, identifiable=True)


def rare_gate(rng):
    """A head that the others hide but for a few large tokens: its scores look along one direction where tokens are seldom large."""
    d, k, m = _shape(rng)
    layer = random_layer(rng, d, m, bias=False)
    chance, w = float(10.0 ** rng.uniform(-5, -2)), np.zeros((d, d))
    theta = layer.theta[0] + np.outer(np.eye(d)[0], rng.standard_normal(d))
    w = layer.w[0] * float(rng.choice([0.5, 2.0]))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.standard_normal((n, k, d))
        x[..., 0] = np.where(g.random((n, k)) < chance, 1.0, 0.0)
        return x

    layer = _with(layer, [theta], [w])
    return from_tokens("head behind a rare gate", rng, layer, tokens, EXTREME, n=5000)


RANGES: dict[str, Callable[[np.random.Generator], Problem]] = {
    "large tokens": large_tokens,
    "far tokens": far_tokens,
    "tiny outputs": small_outputs,
    "uneven": uneven,
    "close heads": close_heads,
    "dipoles": dipoles,
    "second differences": second_differences,
    "nearly cancelling": nearly_cancelling,
    "transposed": transposed,
    "opposite": opposite,
    "rare gate": rare_gate,
}
