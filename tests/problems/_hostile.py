"""The hostile suite: every family tries to earn a certificate that it must not get, or to hide a right answer.

`right` names the outcomes that are right for the family. RECOVERED is right only where the true layer can be
found, and then the certificate is judged against that layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from attnlearn import AttentionLayer, hard
from attnlearn.scores import Offsets, Relative
from tests.problems import _teachers as teachers
from tests.problems._problem import FIT_FAILED, FOUND, WEAK, Problem


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.choice([8, 12, 16])), int(rng.choice([4, 6, 8])), int(rng.choice([2, 3, 4]))


def _tokens(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    return rng.standard_normal((n, k, d)) if rng.random() < 0.6 else rng.choice([-1.0, 1.0], (n, k, d))


def _from_layer(name, layer, right, rng, n=4000, k=6, **options) -> Problem:
    x = _tokens(rng, 2 * n, k, layer.dim)
    y = layer(x)
    return Problem(name, x[:n], y[:n], layer, right, (x[n:], y[n:]), options)


def _from_map(
    name,
    right,
    rng,
    function: Callable[[np.ndarray, AttentionLayer], np.ndarray],
    n=4000,
    truth: Callable[[AttentionLayer], AttentionLayer] = lambda layer: None,
) -> Problem:
    """Outputs of a function that begins with a layer; `truth` is the layer with positions that it is, if it is one."""
    d, k, m = _shape(rng)
    layer = AttentionLayer.random(m, d, seed=int(rng.integers(2**31)))
    x = rng.standard_normal((2 * n, k, d))
    y = function(x, layer)
    return Problem(name, x[:n], y[:n], truth(layer), right, (x[n:], y[n:]))


def generic(rng):
    d, k, m = _shape(rng)
    rank = int(rng.choice([d, d // 2]))
    layer = AttentionLayer.random(
        m, d, rank=rank, bias=bool(rng.random() < 0.5), seed=int(rng.integers(2**31))
    )
    return replace(_from_layer("generic", layer, FOUND, rng, n=8000, k=k), identifiable=True)


def parity(rng):
    dim = int(rng.choice([8, 12]))
    layer = hard.parity(dim, int(rng.choice([2, 4])), seed=int(rng.integers(2**31)))
    x = rng.choice([-1.0, 1.0], (8000, 2, dim))
    y = layer(x)
    right = (
        FIT_FAILED
        | WEAK
        | {"LOW_EFFECTIVE_RANK", "HEADS_INDISTINGUISHABLE", "SATURATED", "PROJECTIONS_CANCEL"}
    )
    return Problem("parity", x[:4000], y[:4000], layer, right, (x[4000:], y[4000:]))


def degenerate(rng):
    kind = str(rng.choice(hard.DEGENERACIES))
    distance = float(10.0 ** rng.uniform(-8, -0.5))
    d, k, m = _shape(rng)
    layer = hard.near_degenerate(kind, d, m, distance, seed=int(rng.integers(2**31)))
    right = FIT_FAILED | WEAK | {
        "RECOVERED", "HEADS_INDISTINGUISHABLE", "PROJECTIONS_CANCEL", "LOW_EFFECTIVE_RANK", "NUMERICAL_FAILURE",
    }  # fmt: skip
    return _from_layer(f"degenerate {kind}", layer, right, rng, n=6000, k=k)


def wrong_count(rng):
    d, k, m = _shape(rng)
    layer = AttentionLayer.random(m, d, seed=int(rng.integers(2**31)))
    forced = m + int(rng.choice([-1, 1]))
    right = FIT_FAILED | {"HEADS_INDISTINGUISHABLE"}
    if forced > m:  # a head too many is found idle, and the true layer is what remains
        right |= {"RECOVERED"}
    problem = _from_layer("wrong head count forced", layer, right, rng, k=k, num_heads=forced)
    return replace(problem, identifiable=forced > m)


def too_few(rng):
    d, k, m = 16, 4, 4
    layer = AttentionLayer.random(m, d, seed=int(rng.integers(2**31)))
    return _from_layer("too few examples", layer, FIT_FAILED | WEAK, rng, n=int(rng.integers(20, 30)), k=k)


def noisy(rng):
    level = float(10.0 ** rng.uniform(-6, -1))
    problem = generic(rng)
    scale = np.sqrt(np.mean(problem.y**2))
    y = problem.y + level * scale * rng.standard_normal(problem.y.shape)
    return Problem("noise", problem.x, y, problem.truth, FIT_FAILED | WEAK | FOUND, problem.fresh)


def subspace(rng):
    d, k, m = _shape(rng)
    layer = AttentionLayer.random(m, d, seed=int(rng.integers(2**31)))
    basis = rng.standard_normal((d // 2, d)) / np.sqrt(d // 2)
    x = rng.standard_normal((12000, k, d // 2)) @ basis
    y = layer(x)
    right = FIT_FAILED | {"RECOVERED", "TOKENS_DEGENERATE"}
    fresh = (x[6000:], y[6000:])
    return Problem("tokens in a subspace", x[:6000], y[:6000], layer, right, fresh, identifiable=True)


def residual(rng):
    return _from_map("residual", FIT_FAILED, rng, lambda x, layer: x + layer(x))


def normalised(rng):
    return _from_map("layer norm", FIT_FAILED, rng, lambda x, layer: teachers.normalise(layer(x), rng))


def dropped(rng):
    return _from_map("dropout", FIT_FAILED, rng, lambda x, layer: teachers.dropout(layer, x, 0.1, rng))


def positional(rng):
    """One slope for all heads: a layer with positions, which a learner may find by itself."""
    slope = float(rng.uniform(0.1, 1.0))

    def sloped(layer: AttentionLayer) -> AttentionLayer:
        scores = Relative(layer.form, np.full((layer.num_heads, 1), slope), Offsets("slope"))
        return AttentionLayer.from_scores(scores, layer.w)

    return _from_map(
        "positions", FIT_FAILED | FOUND, rng,
        lambda x, layer: teachers.with_score_bias(layer, x, -slope * teachers.gaps(x.shape[1])),
        truth=sloped,
    )  # fmt: skip


def windowed(rng):
    """Neighbours alone: a layer with a window, which a learner may find by itself."""
    return _from_map(
        "window", FIT_FAILED | FOUND, rng,
        lambda x, layer: teachers.with_score_bias(layer, x, np.where(teachers.gaps(x.shape[1]) > 1, -1e9, 0.0)),
        truth=lambda layer: layer.replace(window=2),
    )  # fmt: skip


def undeclared_causal(rng):
    d, k, m = _shape(rng)
    layer = AttentionLayer.random(m, d, seed=int(rng.integers(2**31)), causal=True)
    right = FIT_FAILED | {"RECOVERED"}  # a learner may find the mask by itself
    return replace(_from_layer("causal, not declared", layer, right, rng, k=k), identifiable=True)


def perceptron(rng):
    return _from_map("perceptron", FIT_FAILED | WEAK, rng, lambda x, layer: teachers.mlp(x, rng))


def two_layers(rng):
    second = AttentionLayer.random
    return _from_map(
        "two layers", FIT_FAILED | WEAK, rng,
        lambda x, layer: second(2, layer.dim, seed=int(rng.integers(2**31)))(layer(x)),
    )  # fmt: skip


HOSTILE: dict[str, Callable[[np.random.Generator], Problem]] = {
    "generic": generic,
    "parity": parity,
    "degenerate": degenerate,
    "wrong count": wrong_count,
    "too few": too_few,
    "noise": noisy,
    "subspace": subspace,
    "residual": residual,
    "normalised": normalised,
    "dropout": dropped,
    "positions": positional,
    "window": windowed,
    "causal": undeclared_causal,
    "perceptron": perceptron,
    "two layers": two_layers,
}


def hostile_problems(num: int, seed: int = 0) -> Iterator[Problem]:
    """`num` problems, the families in turn, each from its own seed."""
    names = list(HOSTILE)
    for index in range(num):
        yield HOSTILE[names[index % len(names)]](np.random.default_rng([seed, index]))
