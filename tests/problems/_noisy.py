"""Outputs with errors: honest noise of several kinds, rounding of several kinds, and structure that must not pass for noise.

A layer behind honest errors is found at the accuracy that they allow; claims about it are judged against the true layer, and C1 against
outputs as recorded where it says so. Structure without noise, or beside it, must not be called noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from attnlearn import AttentionLayer
from attnlearn.scores import Offsets, Relative
from tests.problems._plain import forward
from tests.problems._problem import FIT_FAILED, HONEST, Fresh, Problem

NUM = 2_500
NOISY = HONEST | FIT_FAILED
REACHED = 0.02
"""Noise up to which the accuracy of five per cent is reached with these numbers of examples."""
Errors = Callable[[np.ndarray, np.random.Generator], np.ndarray]
Tokens = Callable[[np.random.Generator, int, int, int], np.ndarray]


def normal(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    return rng.standard_normal((n, k, d))


def correlated(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    x = rng.standard_normal((n, k, d))
    for a in range(1, k):
        x[:, a] = 0.6 * x[:, a - 1] + 0.8 * x[:, a]
    return x


def normalized(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    x = rng.standard_normal((n, k, d)) @ rng.standard_normal((d, d)) / np.sqrt(d)
    x -= x.mean(axis=2, keepdims=True)
    return x / x.std(axis=2, keepdims=True) + 0.3


def antipodal(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    half = rng.standard_normal((n, (k + 1) // 2, d))
    jitter = 10.0 ** rng.uniform(-6, -3)
    return np.concatenate([half, -half], axis=1) + jitter * rng.standard_normal((n, 2 * half.shape[1], d))


def _random(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(5, 9)), int(rng.integers(4, 7)), int(rng.integers(1, 4))


def _layer(rng: np.random.Generator, d: int, m: int, **more: Any) -> AttentionLayer:
    return AttentionLayer.random(
        m, d, scale=float(rng.uniform(1.2, 2.5)), seed=int(rng.integers(2**31)), **more
    )


def _problem(
    name: str,
    rng: np.random.Generator,
    errors: Errors,
    *,
    tokens: Tokens = normal,
    truth: AttentionLayer | None = None,
    function: Callable[[np.ndarray], np.ndarray] | None = None,
    right: frozenset[str] = NOISY,
    identifiable: bool = False,
    dtype: Any = np.float64,
) -> Problem:
    """Examples of a layer, or of a function that is none, with errors."""
    d, k, m = _random(rng)
    layer = _layer(rng, d, m) if truth is None else truth
    seed, made = int(rng.integers(2**31)), tokens(rng, 1, k, layer.dim).shape[1]
    assert made >= 3

    def draw(num: int, solution: Any, side: int = 1) -> Fresh:
        generator = np.random.default_rng([seed, side])
        x = tokens(generator, num, k, layer.dim).astype(dtype).astype(np.float64)
        y = forward(layer, x, None) if function is None else function(x)
        behind = solution is not None and solution.certificate.claim("C1").value.get("against") == "layer"
        return Fresh(x, y if behind else y + errors(y, generator))

    x, y, *_ = draw(NUM, None, 0)
    return Problem(
        name, x, y, layer if function is None else None, right, draw=draw, identifiable=identifiable
    )


def independent(level: float) -> Errors:
    return lambda y, rng: level * y.std() * rng.standard_normal(y.shape)


def _kinds(level: float) -> dict[str, Errors]:
    return {
        "independent": independent(level),
        "offset": lambda y, rng: (
            level * y.std() * rng.standard_normal((len(y), 1, y.shape[2])) * np.ones((1, y.shape[1], 1))
        ),
        "unequal": lambda y, rng: level * y * rng.standard_normal(y.shape),
        "heavy": lambda y, rng: level * y.std() * rng.standard_t(4, y.shape),
    }


def noisy(kind: str, tokens: Tokens = normal) -> Callable[[np.random.Generator], Problem]:
    def make(rng: np.random.Generator) -> Problem:
        level = float(10.0 ** rng.uniform(-5, -0.7))
        sure = level <= REACHED and tokens is normal
        return _problem(f"noise, {kind}", rng, _kinds(level)[kind], tokens=tokens, identifiable=sure)

    return make


def _rounded(kind: Any) -> Errors:
    return lambda y, _: y.astype(kind).astype(np.float64) - y


def bfloat16(rng):
    return _problem("outputs in bfloat16", rng, _rounded(ml_dtypes.bfloat16), identifiable=True)


def float16(rng):
    return _problem("outputs in float16", rng, _rounded(np.float16), identifiable=True)


def float32(rng):
    return _problem("float32 outputs as float64", rng, _rounded(np.float32), identifiable=True)


def single_softmax(rng):
    """A float64 model whose softmax runs in float32."""
    d, _, m = _random(rng)
    layer = _layer(rng, d, m)

    def errors(x: np.ndarray) -> np.ndarray:
        weights = _softmax(layer.scores(x).astype(np.float32)).astype(np.float64)
        return np.einsum("nmab,nbd,mdo->nao", weights, x, layer.w)

    problem = _problem(
        "softmax in float32", rng, lambda y, _: 0 * y, truth=layer, function=errors, identifiable=True
    )
    return Problem(**{**vars(problem), "truth": layer})


def near_heads(rng):
    """Two heads that noise may merge."""
    d, _, _ = _random(rng)
    layer, apart = _layer(rng, d, 2), float(10.0 ** rng.uniform(-2, 0))
    theta = layer.theta.copy()
    theta[1] = theta[0] + apart * theta[1]
    return _problem(
        "close heads", rng, independent(10.0 ** rng.uniform(-4, -1)), truth=layer.replace(theta=theta)
    )


def faint_head(rng):
    d, _, _ = _random(rng)
    layer, size = _layer(rng, d, 3), float(10.0 ** rng.uniform(-4, 0))
    w = layer.w.copy()
    w[2] *= size
    return _problem("faint head", rng, independent(10.0 ** rng.uniform(-4, -1)), truth=layer.replace(w=w))


def mirrored(rng):
    return _problem(
        "nearly antipodal tokens", rng, independent(10.0 ** rng.uniform(-4, -1.5)), tokens=antipodal
    )


def foreign(rng):
    """A few sequences of another layer."""
    number = int(rng.integers(1, 6))

    def errors(y: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        wrong = np.zeros_like(y)
        wrong[generator.choice(len(y), number * len(y) // NUM, replace=False)] = generator.standard_normal(
            y.shape[1:]
        )
        return wrong + 1e-3 * y.std() * generator.standard_normal(y.shape)

    return _problem("foreign sequences", rng, errors)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def structure(kind: str) -> Callable[[np.random.Generator], Problem]:
    """Another kind of attention without any noise: no plain layer explains it. One with a table by offset is what "relative" is."""

    def make(rng: np.random.Generator) -> Problem:
        d, _, m = _random(rng)
        layer, size = _layer(rng, d, m), float(10.0 ** rng.uniform(-3, -2))
        turn = rng.standard_normal(layer.theta.shape) / d
        table = rng.standard_normal((m, 32))

        def function(x: np.ndarray) -> np.ndarray:
            scores, k = layer.scores(x), x.shape[1]
            offset = np.arange(k)[None] - np.arange(k)[:, None]
            if kind == "residual":
                return layer(x) + size * x
            if kind == "soft cap":
                scores = np.tanh(scores * size) / size / 3
            if kind == "rotary":
                scores = scores + size * offset * np.einsum("nad,mde,nbe->nmab", x, turn, x)
            if kind == "relative":
                scores = scores + size * table[:, offset + 16][None]
            weights = _softmax(scores)
            if kind == "sink":
                weights = np.exp(scores) / (np.exp(scores).sum(axis=-1, keepdims=True) + size)
            return np.einsum("nmab,nbd,mdo->nao", weights, x, layer.w)

        right = frozenset({"NOT_ATTENTION", "NOT_ESTABLISHED", "HEADS_INDISTINGUISHABLE"})
        problem = _problem(
            f"{kind}, no noise", rng, lambda y, _: 0 * y, truth=layer, function=function, right=right
        )
        if kind != "relative":
            return problem
        scores = Relative(layer.form, size * table[:, 1:], Offsets("table", reach=15))
        known = AttentionLayer.from_scores(scores, layer.w, layer.output_bias)
        return dataclasses.replace(problem, truth=known, right=right | {"RECOVERED"})

    return make


WITH_ERRORS: dict[str, Callable[[np.random.Generator], Problem]] = {
    **{f"noise: {kind}": noisy(kind) for kind in ("independent", "offset", "unequal", "heavy")},
    "noise: correlated tokens": noisy("independent", correlated),
    "noise: normalised tokens": noisy("independent", normalized),
    "rounded: bfloat16": bfloat16,
    "rounded: float16": float16,
    "rounded: float32": float32,
    "rounded: softmax": single_softmax,
    "noise: close heads": near_heads,
    "noise: faint head": faint_head,
    "noise: antipodal": mirrored,
    "noise: foreign sequences": foreign,
    **{
        f"structure: {kind}": structure(kind)
        for kind in ("residual", "soft cap", "rotary", "relative", "sink")
    },
}
"""Kinds of outputs with errors, and of structure that must not be called noise."""
