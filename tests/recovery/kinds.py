"""Twenty-two kinds of problem, small enough for tests: name -> (x, y, keywords of `recover`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, hard
from attnlearn.scores import Offsets, Relative

Case = tuple[np.ndarray, np.ndarray, dict[str, Any]]
KINDS: dict[str, Callable[[np.random.Generator], Case]] = {}


def _kind(name: str) -> Callable[[Callable[[np.random.Generator], Case]], Callable]:
    def add(make: Callable[[np.random.Generator], Case]) -> Callable:
        KINDS[name] = make
        return make

    return add


def _layer(rng: np.random.Generator, heads: int = 3, dim: int = 8, **options: Any) -> AttentionLayer:
    return AttentionLayer.random(heads, dim, seed=int(rng.integers(1 << 30)), **options)


def _words(rng: np.random.Generator, num: int, tokens: int, dim: int, words: int = 40) -> np.ndarray:
    return rng.standard_normal((words, dim))[rng.integers(0, words, (num, tokens))]


@_kind("gaussian")
def gaussian(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((4000, 5, 8))
    return x, layer(x), {}


@_kind("signs")
def signs(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng, dim=10), rng.choice([-1.0, 1.0], (6000, 5, 10))
    return x, layer(x), {}


@_kind("words")
def words(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), _words(rng, 4000, 5, 8)
    return x, layer(x), {}


@_kind("correlated")
def correlated(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((4000, 5, 8))
    for place in range(1, 5):
        x[:, place] = 0.6 * x[:, place - 1] + 0.8 * x[:, place]
    return x, layer(x), {}


@_kind("heavy tails")
def heavy_tails(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_t(4, (6000, 5, 8)) / np.sqrt(2)
    return x, layer(x), {}


@_kind("rank one")
def rank_one(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng, heads=2, rank=1), rng.standard_normal((4000, 5, 8))
    return x, layer(x), {}


@_kind("flat head")
def flat_head(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((6000, 5, 8))
    theta = layer.theta.copy()
    theta[0] *= 1e-3
    layer = layer.replace(theta=theta)
    return x, layer(x), {}


@_kind("parallel W")
def parallel_values(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((6000, 5, 8))
    w = layer.w.copy()
    w[1] = 1.5 * w[0]
    layer = layer.replace(w=w)
    return x, layer(x), {}


@_kind("opposite pairs")
def opposite_pairs(rng: np.random.Generator) -> Case:
    half, x = _layer(rng, heads=2, dim=10), rng.standard_normal((8000, 6, 10))
    layer = AttentionLayer(
        np.concatenate([half.theta, -half.theta]),
        np.concatenate([half.w, -half.w]),
        np.concatenate([half.query_bias, -half.query_bias]),
        half.output_bias,
    )
    return x, layer(x), {}


@_kind("few examples")
def few_examples(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng, heads=4, dim=12), rng.standard_normal((60, 5, 12))
    return x, layer(x), {}


@_kind("many heads")
def many_heads(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng, heads=12, dim=10), rng.standard_normal((8000, 6, 10))
    return x, layer(x), {}


@_kind("noise")
def noise(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((6000, 5, 8))
    y = layer(x)
    return x, y + 0.01 * y.std() * rng.standard_normal(y.shape), {}


@_kind("float32")
def float32(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((4000, 5, 8)).astype(np.float32)
    return x, layer.astype(np.float32)(x), {}


@_kind("bfloat16")
def bfloat16(rng: np.random.Generator) -> Case:
    import ml_dtypes

    layer, x = _layer(rng).astype(np.float32), rng.standard_normal((6000, 5, 8)).astype(np.float32)
    return x, layer(x).astype(ml_dtypes.bfloat16).astype(np.float32), {}


@_kind("causal")
def causal(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((4000, 6, 8))
    layer = AttentionLayer(*layer.parameters, causal=True)
    return x, layer(x), {}


@_kind("masked")
def masked(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((4000, 6, 8))
    mask = np.arange(6) < rng.integers(4, 7, 4000)[:, None]
    return x, layer(x, mask=mask), {"mask": mask}


@_kind("residual left in")
def residual(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), rng.standard_normal((4000, 5, 8))
    return x, x + layer(x), {}


@_kind("two layers")
def two_layers(rng: np.random.Generator) -> Case:
    first, second = _layer(rng, heads=2), _layer(rng, heads=2)
    x = rng.standard_normal((4000, 5, 8))
    return x, second(first(x)), {}


@_kind("parity")
def parity(rng: np.random.Generator) -> Case:
    layer = hard.parity(dim=8, num_heads=2, seed=int(rng.integers(1 << 30)))
    x = rng.choice([-1.0, 1.0], (4000, 2, 8))
    return x, layer(x), {}


@_kind("saturated")
def saturated(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng, scale=60.0), rng.standard_normal((4000, 5, 8))
    return x, layer(x), {}


@_kind("residual on words")
def residual_on_words(rng: np.random.Generator) -> Case:
    layer, x = _layer(rng), _words(rng, 3000, 5, 8)
    return x, x + layer(x), {}


@_kind("table by offset")
def table_by_offset(rng: np.random.Generator) -> Case:
    plain, x = _layer(rng, heads=2), rng.standard_normal((4000, 5, 8))
    scores = Relative(plain.form, rng.standard_normal((2, 9)), Offsets("table", reach=4))
    return x, AttentionLayer.from_scores(scores, plain.w, plain.output_bias)(x), {}
