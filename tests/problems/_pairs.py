"""Pairs of a layer and data for the certifier alone: right ones, and wrong ones of many kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attnlearn import AttentionLayer, hard
from tests.problems import _teachers as teachers

SHAPES = ((8, 4, 2), (12, 6, 3), (16, 5, 4))  # few shapes (d, k, m), so that little is compiled
NUM = 1500


@dataclass(frozen=True)
class Pair:
    """A claimed layer, examples, fresh examples, and the true layer if there is one."""

    name: str
    layer: AttentionLayer
    x: np.ndarray
    y: np.ndarray
    truth: AttentionLayer | None
    fresh: tuple[np.ndarray, np.ndarray]
    right: bool


def _truth(rng: np.random.Generator) -> tuple[AttentionLayer, np.ndarray]:
    d, k, m = SHAPES[rng.integers(len(SHAPES))]
    scale = float(rng.choice([0.5, 2.0, 4.0]))
    layer = AttentionLayer.random(
        m, d, scale=scale, bias=bool(rng.random() < 0.5), seed=int(rng.integers(2**31))
    )
    boolean = rng.random() < 0.3
    x = rng.choice([-1.0, 1.0], (2 * NUM, k, d)) if boolean else rng.standard_normal((2 * NUM, k, d))
    return layer, x


def _pair(name: str, layer: AttentionLayer, x, y, truth, right=False) -> Pair:
    return Pair(name, layer, x[:NUM], y[:NUM], truth, (x[NUM:], y[NUM:]), right)


def right(rng):
    truth, x = _truth(rng)
    order = rng.permutation(truth.num_heads)
    wobble = 1 + 1e-15 * rng.standard_normal((truth.num_heads, 1, 1))
    layer = truth.replace(
        theta=(truth.theta * wobble)[order], w=truth.w[order], query_bias=truth.query_bias[order]
    )
    return _pair("right", layer, x, truth(x), truth, right=True)


def perturbed(rng):
    truth, x = _truth(rng)
    size = 10.0 ** rng.uniform(-10, -0.3)
    layer = truth.replace(theta=truth.theta * (1 + size * rng.standard_normal(truth.theta.shape)))
    return _pair("perturbed", layer, x, truth(x), truth)


def head_dropped(rng):
    truth, x = _truth(rng)
    tiny = truth.w.copy()
    tiny[-1] *= 10.0 ** rng.uniform(-9, 0)
    truth = truth.replace(w=tiny)
    layer = AttentionLayer(truth.theta[:-1], truth.w[:-1], truth.query_bias[:-1], truth.output_bias)
    return _pair("head dropped", layer, x, truth(x), truth)


def head_added(rng):
    truth, x = _truth(rng)
    extra = 10.0 ** rng.uniform(-14, -2) * truth.w[:1]
    theta = np.concatenate([truth.theta, rng.standard_normal((1, truth.dim, truth.dim))])
    bias = np.concatenate([truth.query_bias, truth.query_bias[:1]])
    layer = AttentionLayer(theta, np.concatenate([truth.w, extra]), bias, truth.output_bias)
    return _pair("head added", layer, x, truth(x), truth)


def head_split(rng):
    truth, x = _truth(rng)
    gap = 10.0 ** rng.uniform(-12, -3)
    theta = np.concatenate([truth.theta, truth.theta[:1] * (1 + gap)])
    w = np.concatenate([truth.w, truth.w[:1] * 0.5])
    w[0] *= 0.5
    layer = AttentionLayer(
        theta, w, np.concatenate([truth.query_bias, truth.query_bias[:1]]), truth.output_bias
    )
    return _pair("head split", layer, x, truth(x), truth)


def heads_merged(rng):
    truth, x = _truth(rng)
    theta = truth.theta.copy()
    theta[1] = theta[0] + 10.0 ** rng.uniform(-8, -1) * theta[1]
    bias = truth.query_bias.copy()
    bias[1] = bias[0]
    truth = truth.replace(theta=theta, query_bias=bias)
    w = np.concatenate([truth.w[:1] + truth.w[1:2], truth.w[2:]])
    layer = AttentionLayer(np.delete(theta, 1, 0), w, np.delete(bias, 1, 0), truth.output_bias)
    return _pair("heads merged", layer, x, truth(x), truth)


def other_layer(rng):
    truth, x = _truth(rng)
    layer = AttentionLayer.random(truth.num_heads, truth.dim, seed=int(rng.integers(2**31)))
    return _pair("another layer", layer, x, truth(x), truth)


def projections_swapped(rng):
    truth, x = _truth(rng)
    return _pair("projections swapped", truth.replace(w=np.roll(truth.w, 1, axis=0)), x, truth(x), truth)


def noisy(rng):
    truth, x = _truth(rng)
    y = truth(x)
    y = y + 10.0 ** rng.uniform(-9, -1) * y.std() * rng.standard_normal(y.shape)
    return _pair("noise", truth, x, y, None)


def two_tokens(rng):
    dim, heads = 8, int(rng.choice([2, 4]))
    truth = hard.parity(dim, heads, seed=int(rng.integers(2**31)))
    x = rng.choice([-1.0, 1.0], (2 * NUM, 2, dim))
    other = truth.replace(theta=-truth.theta, w=-truth.w) if rng.random() < 0.5 else truth
    return _pair("parity on two tokens", other, x, truth(x), None)


def residual(rng):
    truth, x = _truth(rng)
    return _pair("residual", truth, x, truth(x) + x, None)


def positions(rng):
    truth, x = _truth(rng)
    truth = truth.replace(query_bias=0 * truth.query_bias, output_bias=0 * truth.output_bias)
    slope = 10.0 ** rng.uniform(-8, 0)
    return _pair(
        "positions", truth, x, teachers.with_score_bias(truth, x, -slope * teachers.gaps(x.shape[1])), None
    )


def subspace(rng):
    truth, x = _truth(rng)
    x = x.copy()
    x[..., -1] = 0.0
    layer = truth.replace(theta=truth.theta + np.eye(truth.dim)[-1][:, None] * rng.standard_normal(truth.dim))
    return _pair("tokens in a subspace", layer, x, truth(x), truth)


WRONG: dict[str, Callable[[np.random.Generator], Pair]] = {
    function.__name__: function
    for function in (
        perturbed, head_dropped, head_added, head_split, heads_merged, other_layer, projections_swapped, noisy,
        two_tokens, residual, positions, subspace,
    )
}  # fmt: skip


def pairs(num: int, seed: int = 0) -> Iterator[Pair]:
    """`num` pairs: every third is right, the others wrong in turn."""
    wrong = list(WRONG.values())
    for index in range(num):
        rng = np.random.default_rng([seed, index])
        yield right(rng) if index % 3 == 0 else wrong[(index - index // 3 - 1) % len(wrong)](rng)
