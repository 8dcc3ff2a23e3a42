"""Layers that their examples show: continuous tokens of every kind. A certifier without power here says nothing, however honest it is.

Every sequence has at least three free tokens with a joint density on a manifold that spans their space, and every head is in general position.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.problems._problem import FOUND, Problem, from_tokens, precision, random_layer


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(4, 11)), int(rng.integers(4, 7)), int(rng.integers(1, 4))


def _problem(name: str, rng: np.random.Generator, tokens: Callable[..., np.ndarray], **more) -> Problem:
    """A random layer on tokens(g, n, k, d)."""
    d, k, m = _shape(rng)
    options = {name: more.pop(name) for name in ("causal", "rank", "scale") if name in more}
    layer = random_layer(rng, d, m, **options)
    more = {"n": 4000, "identifiable": True} | more
    return from_tokens(name, rng, layer, lambda g, n: tokens(g, n, k, d), FOUND, **more)


def _normal(g: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    return g.standard_normal((n, k, d))


def gaussian(rng):
    return _problem("Gaussian", rng, _normal)


def single(rng):
    return _problem("float32", rng, _normal, dtype=np.float32)


def causal(rng):
    return _problem("causal", rng, _normal, causal=True, dtype=precision(rng))


def uniform(rng):
    return _problem("uniform", rng, lambda g, n, k, d: g.uniform(-1.7, 1.7, (n, k, d)))


def positive(rng):
    """Tokens of positive coordinates, far from the origin in their mean."""
    return _problem("positive", rng, lambda g, n, k, d: g.exponential(0.8, (n, k, d)))


def heavy(rng):
    freedom = float(rng.uniform(3.5, 8.0))
    return _problem("heavy tails", rng, lambda g, n, k, d: g.standard_t(freedom, (n, k, d)) / 1.3)


def skewed(rng):
    mixing = rng.standard_normal((16, 16)) / 4
    return _problem(
        "skewed", rng, lambda g, n, k, d: np.exp(0.6 * _normal(g, n, k, d)) @ mixing[:d, :d] / np.sqrt(d / 16)
    )


def unequal(rng):
    """Directions whose sizes differ by up to a hundred."""
    sizes = 10.0 ** rng.uniform(-1.5, 0.5, 16)
    return _problem("unequal directions", rng, lambda g, n, k, d: _normal(g, n, k, d) * sizes[:d])


def correlated(rng):
    """Neighbours resemble each other."""
    share = float(rng.uniform(0.3, 0.9))

    def tokens(g, n, k, d):
        x = _normal(g, n, k, d)
        for place in range(1, k):
            x[:, place] = share * x[:, place - 1] + np.sqrt(1 - share**2) * x[:, place]
        return x

    return _problem("correlated places", rng, tokens, dtype=precision(rng))


def topics(rng):
    """Every sequence has a topic, which all its tokens share."""
    return _problem("topics", rng, lambda g, n, k, d: 0.8 * _normal(g, n, 1, d) + 0.6 * _normal(g, n, k, d))


def cumulative(rng):
    return _problem(
        "cumulative sums", rng, lambda g, n, k, d: np.cumsum(_normal(g, n, k, d), axis=1) / np.sqrt(k)
    )


def centred(rng):
    """The tokens of every sequence sum to zero: the stacked covariance is singular, the layer is shown all the same."""

    def tokens(g, n, k, d):
        x = _normal(g, n, k, d)
        return x - x.mean(axis=1, keepdims=True)

    return _problem("centred sequences", rng, tokens)


def ordered(rng):
    """Tokens in the order of their first coordinate."""

    def tokens(g, n, k, d):
        x = _normal(g, n, k, d)
        return np.take_along_axis(x, np.argsort(x[..., :1], axis=1), axis=1)

    return _problem("tokens in order", rng, tokens, dtype=precision(rng))


def frames(rng):
    """Orthonormal tokens: each is free on the sphere, but for the others."""

    def tokens(g, n, k, d):
        return np.swapaxes(np.linalg.qr(_normal(g, n, d, d))[0], 1, 2)[:, : min(k, d - 1)] * np.sqrt(d)

    return _problem("orthonormal frames", rng, tokens)


def ellipsoid(rng):
    axes = rng.uniform(0.5, 2.0, 16)

    def tokens(g, n, k, d):
        x = _normal(g, n, k, d)
        return np.sqrt(d) * x / np.linalg.norm(x, axis=2, keepdims=True) * axes[:d]

    return _problem("on an ellipsoid", rng, tokens, dtype=precision(rng))


def normalised(rng):
    """LayerNorm with gain and bias behind a first token that never changes."""
    gain, bias, first = rng.uniform(0.5, 1.5, 16), 0.3 * rng.standard_normal(16), rng.standard_normal(16)

    def tokens(g, n, k, d):
        x = _normal(g, n, k, d)
        x[:, 0] = first[:d]
        x -= x.mean(axis=2, keepdims=True)
        return x / x.std(axis=2, keepdims=True) * gain[:d] + bias[:d]

    return _problem("LayerNorm and a constant token", rng, tokens, dtype=precision(rng))


def recorded(rng):
    """Words and places and what the layers before made of them, behind LayerNorm."""
    words, places, mixing = (rng.standard_normal(shape) for shape in ((200, 16), (8, 16), (32, 16)))

    def tokens(g, n, k, d):
        x = words[g.integers(200, size=(n, k))][..., :d] + 0.7 * places[:k, :d]
        around = np.concatenate([x, np.broadcast_to(x.mean(axis=1, keepdims=True), x.shape)], axis=2)
        x = x + np.tanh(around @ mixing[: 2 * d, :d] / np.sqrt(d))
        x -= x.mean(axis=2, keepdims=True)
        return x / x.std(axis=2, keepdims=True)

    return _problem("recorded-like", rng, tokens, dtype=precision(rng))


def padded(rng):
    d, k, m = _shape(rng)

    def padding(g: np.random.Generator, n: int) -> np.ndarray:
        return np.arange(k) < g.integers(2, k + 1, n)[:, None]

    layer = random_layer(rng, d, m, causal=bool(rng.random() < 0.3))
    return from_tokens(
        "padding", rng, layer, lambda g, n: _normal(g, n, k, d), FOUND, padding=padding, identifiable=True
    )


def low_rank(rng):
    return _problem("low rank", rng, _normal, rank=2)


def bias_heads(rng):
    """A head whose scores are a query bias alone: it looks for one direction, whoever asks."""
    d, k, m = _shape(rng)
    layer = random_layer(rng, d, m, bias=True)
    theta = layer.theta.copy()
    theta[0] = 0.0
    layer = layer.replace(
        theta=theta, query_bias=layer.query_bias * np.where(np.arange(m) == 0, 2.0, 1.0)[:, None]
    )
    return from_tokens(
        "a head of bias alone",
        rng,
        layer,
        lambda g, n: _normal(g, n, k, d),
        FOUND | {"NOT_ESTABLISHED"},
        identifiable=True,
    )


def narrow(rng):
    """One, two or three outputs."""
    d, k, m = _shape(rng)
    layer = random_layer(rng, d, m)
    outputs = int(rng.integers(1, 4))
    layer = layer.replace(w=layer.w[:, :, :outputs], output_bias=layer.output_bias[:outputs])
    return from_tokens(
        "few outputs",
        rng,
        layer,
        lambda g, n: _normal(g, n, k, d),
        FOUND | {"NOT_ESTABLISHED"},
        identifiable=True,
    )


GENERAL: dict[str, Callable[[np.random.Generator], Problem]] = {
    "gaussian": gaussian,
    "float32": single,
    "declared causal": causal,
    "uniform": uniform,
    "positive": positive,
    "heavy tails": heavy,
    "skewed": skewed,
    "unequal directions": unequal,
    "correlated": correlated,
    "topics": topics,
    "cumulative": cumulative,
    "centred": centred,
    "in order": ordered,
    "frames": frames,
    "ellipsoid": ellipsoid,
    "layer norm": normalised,
    "recorded": recorded,
    "padded": padded,
    "low rank": low_rank,
    "bias head": bias_heads,
    "few outputs": narrow,
}
