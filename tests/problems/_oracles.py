"""Oracles for `extract` that look like a layer on short and small queries and are none, and layers whose answers are not clean.

Where no layer stands behind the answers every statement about heads is false; C1 is judged on the tokens that the solution
says it was certified on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._plain import forward, softmax
from tests.problems._problem import FIT_FAILED, FOUND, WITHHELD, Fresh, Problem, random_layer

NO_LAYER = (
    FIT_FAILED | WITHHELD | {"NUMERICAL_FAILURE", "ORACLE_FAILED", "SATURATED", "BUDGET_SPENT"}
) - FOUND
NOISY = NO_LAYER | FOUND
Oracle = Callable[[np.ndarray], np.ndarray]


LENGTHS, SIZES = tuple(range(2, 17)), (1 / 3, 2.0)


def _layer(rng: np.random.Generator) -> AttentionLayer:
    return random_layer(rng, int(rng.integers(4, 7)), int(rng.integers(1, 4)))


def _problem(
    name: str,
    rng: np.random.Generator,
    layer: AttentionLayer,
    oracle: Oracle,
    right: frozenset[str] = NO_LAYER,
    truth: AttentionLayer | None = None,
    call: Callable[[], Any] | None = None,
    identifiable: bool = False,
) -> Problem:
    seed, nothing = int(rng.integers(2**31)), np.empty((0, 3, layer.dim))

    def draw(num: int, solution: Any) -> Fresh:
        """Sequences of the range that the claims name: 2 to 16 tokens, a third to twice the scale."""
        g, scale = np.random.default_rng(seed), float(solution.stats.get("token_scale") or 1.0)
        number = min(num, 4_000)
        lengths = g.choice(LENGTHS, number)
        x = (
            scale
            * np.exp(g.uniform(*np.log(SIZES), number))[:, None, None]
            * g.standard_normal((number, 16, layer.dim))
        )
        y, mask = np.zeros((number, 16, layer.out_dim)), np.arange(16) < lengths[:, None]
        for length in LENGTHS:
            own = lengths == length
            y[own, :length] = oracle(x[own, :length])
        return Fresh(x * mask[..., None], y, mask)

    def extracted() -> Any:
        from attnlearn import extract

        return extract(oracle, layer.dim, raise_on_failure=False, progress=False)

    return Problem(
        name, nothing, nothing, truth, right, draw=draw, call=call or extracted, identifiable=identifiable
    )


def _read(layer: AttentionLayer, x: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The layer with its scores (n, m, k, k) changed before the softmax."""
    x = np.asarray(x, np.float64)
    scores = np.einsum("nad,mde,nbe->nmab", x, layer.theta, x, optimize=True)
    scores += np.einsum("md,nbd->nmb", layer.query_bias, x)[:, :, None]
    weights = softmax(change(scores))
    return np.einsum("nmab,nbd,mdo->nao", weights, x, layer.w, optimize=True) + layer.output_bias


def _gaps(k: int) -> np.ndarray:
    return np.subtract.outer(np.arange(k), np.arange(k))


def plain(rng):
    """A layer that answers as it should."""
    layer = _layer(rng).replace(causal=bool(rng.random() < 0.3))
    return _problem("a plain layer", rng, layer, lambda x: forward(layer, x), FOUND, layer, identifiable=True)


def window(rng):
    layer, width = _layer(rng), int(rng.integers(3, 7))
    return _problem(
        f"window of {width}", rng, layer,
        lambda x: _read(layer, x, lambda s: np.where(np.abs(_gaps(s.shape[-1])) < width, s, -np.inf)),
    )  # fmt: skip


def top(rng):
    """Only the three or four best keys are read."""
    layer, most = _layer(rng), int(rng.integers(3, 5))

    def best(scores: np.ndarray) -> np.ndarray:
        if scores.shape[-1] <= most:
            return scores
        return np.where(scores >= np.sort(scores, axis=-1)[..., -most : -most + 1 or None], scores, -np.inf)

    return _problem(f"top {most}", rng, layer, lambda x: _read(layer, x, best))


def truncated(rng):
    """Tokens beyond a length are not read."""
    layer, length = _layer(rng), int(rng.integers(3, 7))
    return _problem(
        f"reads {length} tokens", rng, layer,
        lambda x: _read(layer, x, lambda s: np.where(np.arange(s.shape[-1]) < length, s, -np.inf)),
    )  # fmt: skip


def clipped(rng):
    """Tokens are clipped to a range that Gaussian ones hardly leave."""
    layer, most = _layer(rng), float(rng.uniform(4.0, 9.0))
    return _problem("clipped tokens", rng, layer, lambda x: forward(layer, np.clip(x, -most, most)))


def capped(rng):
    layer, cap = _layer(rng), float(rng.choice([20.0, 50.0]))
    return _problem("soft cap", rng, layer, lambda x: _read(layer, x, lambda s: cap * np.tanh(s / cap)))


def causal_later(rng):
    """Every token is seen up to a length of four; longer sequences are read causally."""
    layer, length = _layer(rng), int(rng.integers(3, 6))

    def change(scores: np.ndarray) -> np.ndarray:
        k = scores.shape[-1]
        return scores if k <= length else np.where(_gaps(k) >= 0, scores, -np.inf)

    return _problem("causal when long", rng, layer, lambda x: _read(layer, x, change))


def distant(rng):
    """Scores fall with the distance, but only from a distance of three on."""
    layer, slope = _layer(rng), float(rng.uniform(0.1, 1.0))
    return _problem(
        "far keys count less", rng, layer,
        lambda x: _read(layer, x, lambda s: s - slope * np.maximum(np.abs(_gaps(s.shape[-1])) - 2, 0)),
    )  # fmt: skip


def drifting(rng):
    """The weights change a little with every batch of questions."""
    layer, rate = _layer(rng), float(10.0 ** rng.uniform(-8, -3))
    asked = [0]

    def oracle(x: np.ndarray) -> np.ndarray:
        asked[0] += 1
        return forward(layer.replace(w=layer.w * (1 + rate * asked[0])), np.asarray(x))

    return _problem("drifting oracle", rng, layer, oracle)


def batch_dependent(rng):
    """Answers depend on what else is in the batch, as with a normalisation over it."""
    layer, share = _layer(rng), float(10.0 ** rng.uniform(-6, -1))

    def oracle(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        return forward(layer, x) * (1 + share * np.tanh(np.mean(x**2)))

    return _problem("depends on the batch", rng, layer, oracle)


def bucketed(rng):
    """A layer at some lengths; at others the sequence is padded with tokens of zero that nobody masks."""
    layer, size = _layer(rng), int(rng.integers(2, 5))

    def oracle(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        n, k, d = x.shape
        missing = 0 if k <= 4 else -k % size
        return forward(layer, np.concatenate([x, np.zeros((n, missing, d))], axis=1))[:, :k]

    return _problem("padded to a multiple", rng, layer, oracle)


def rounding(rng):
    """Answers with the digits of float32 or float16, or with four to eight decimals."""
    layer, kind = _layer(rng), str(rng.choice(["float32", "float16", "decimals"]))
    places = int(rng.integers(4, 9))

    def oracle(x: np.ndarray) -> np.ndarray:
        y = forward(layer, np.asarray(x))
        return np.round(y, places) if kind == "decimals" else y.astype(kind).astype(np.float32)

    return _problem(f"answers in {kind}", rng, layer, oracle, NOISY, layer)


def exchanged(rng):
    """The checkpoint folder of another oracle of the same kind."""
    first = _layer(rng)
    second = random_layer(rng, first.dim, first.num_heads)

    def call() -> Any:
        from attnlearn import extract

        options = {"raise_on_failure": False, "progress": False}
        with tempfile.TemporaryDirectory() as folder:
            extract(first, first.dim, checkpoint=folder, **options)
            try:
                return extract(second, first.dim, checkpoint=folder, **options)
            except ValueError:  # refusing the folder is right
                return extract(second, first.dim, **options)

    return _problem("another's checkpoint", rng, second, lambda x: forward(second, x), FOUND, second, call)


ORACLES: dict[str, Callable[[np.random.Generator], Problem]] = {
    "oracle: layer": plain,
    "oracle: window": window,
    "oracle: top keys": top,
    "oracle: short memory": truncated,
    "oracle: clipped": clipped,
    "oracle: soft cap": capped,
    "oracle: causal when long": causal_later,
    "oracle: far keys": distant,
    "oracle: drifting": drifting,
    "oracle: batch": batch_dependent,
    "oracle: bucketed": bucketed,
    "oracle: rounding": rounding,
    "oracle: checkpoint": exchanged,
}
