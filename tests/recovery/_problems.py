"""Small problems, what the functions under test say of them, and signals, fits and trails made by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, Outcome
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery._fit import Fit, Verdict
from attnlearn.recovery._problem import Candidate, Need, Problem, Weights
from attnlearn.recovery._signals import Signals, measure
from attnlearn.recovery.moment import Counted, Heads, Moment, count_heads, take_moment, unmix
from attnlearn.solve._split import Split
from attnlearn.solve._white import Whitening


def tokens(rng: np.random.Generator, kind: str, num: int, k: int, d: int) -> np.ndarray:
    x = rng.standard_normal((num, k, d))
    if kind == "boolean":
        return np.sign(x)
    if kind == "correlated":
        for a in range(1, k):
            x[:, a] = 0.7 * x[:, a - 1] + np.sqrt(1 - 0.49) * x[:, a]
    if kind == "normalized":
        x -= x.mean(axis=2, keepdims=True)
        x /= x.std(axis=2, keepdims=True)
        x = x * np.exp(0.3 * rng.standard_normal(d)) + 0.5 * rng.standard_normal(d)
    return x


def problem(
    layer: AttentionLayer, x: np.ndarray, *, mask: np.ndarray | None = None, **options: Any
) -> Problem:
    """The examples (x, layer(x)), split as `recover` splits them."""
    return Problem(as_examples(x, layer(x, mask), mask), Split.make(len(x)), **options)


def signals(whole: Problem, seed: int = 0) -> Signals:
    found = measure(whole, Tools(seed=seed))
    assert isinstance(found, Signals)
    return found


def moment(whole: Problem, seed: int = 0, *, every: bool = True) -> Moment:
    return take_moment(whole, signals(whole, seed), Tools(seed=seed), every=every)[0]


def counted(whole: Problem, seed: int = 0) -> Counted:
    """The heads of the moment of every example."""
    return count_heads(whole, signals(whole, seed), moment(whole, seed), Tools(seed=seed), whole.num_heads)


def start(whole: Problem, seed: int = 0) -> Heads:
    """What the moment of every example gives the fit to start from."""
    found, tools = signals(whole, seed), Tools(seed=seed)
    shown = take_moment(whole, found, tools, every=True)[0]
    return unmix(whole, found, shown, count_heads(whole, found, shown, tools, whole.num_heads), tools)


def score_error(found: Signals, truth: AttentionLayer, layer: AttentionLayer) -> np.ndarray:
    """For each true head the relative error of (Theta, c) of the nearest found one, as white tokens see it."""

    def white(some: AttentionLayer) -> np.ndarray:
        inside = found.white.enter(some.parameters)
        return np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1).reshape(some.num_heads, -1)

    true, seen = white(truth), white(layer)
    distance = np.linalg.norm(true[:, None] - seen[None], axis=2)
    return distance.min(axis=1) / np.linalg.norm(true, axis=1)


def made_problem(num: int = 400, tokens: int = 4, dim: int = 5, **options: Any) -> Problem:
    """A problem of which only the sizes matter."""
    x = np.zeros((num, tokens, dim))
    return Problem(as_examples(x, x), Split.make(num), **options)


def made_signals(directions: int = 5, keys: int = 4, **changes: Any) -> Signals:
    """Signals of plenty of independent Gaussian tokens, but for `changes`."""
    r = directions
    plain = Signals(
        fit=np.arange(300), select=np.arange(300, 340), looked_at=300, causal=False,
        white=Whitening(np.zeros(r), np.eye(r), np.eye(r)), condition_number=1.0, position_mean=np.zeros((keys, r)),
        position_correlation=np.eye(keys), kurtosis=np.zeros(r), skewness=np.zeros(r),
        linear=np.zeros((2 * r + 1, r)), residual_covariance=np.eye(r), output_scale=1.0, nonlinear_share=0.3,
        repeated=False, heavy_tails=False, residual=False, rounded=False, equations_per_unknown=1e3,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def made_moment(values: np.ndarray, floor: float = 1.0, examples: int = 300, directions: int = 5) -> Moment:
    """A moment of which only the values and the floor matter."""
    count, r = len(values), directions
    bases = np.zeros((count, r + 1, r)), np.zeros((count, r, r))
    return Moment(np.asarray(values, float), *bases, floor, examples)


def made_candidate(layer: AttentionLayer | None = None, by: str = "moment", **changes: Any) -> Candidate:
    layer = AttentionLayer.random(2, 5) if layer is None else layer
    return dataclasses.replace(Candidate(Weights.of(layer), None, by), **changes)


def made_fit(
    verdict: Verdict = Verdict.MISFIT, error: float = 0.1, heads: int = 2, by: str = "moment", **changes: Any
) -> Fit:
    """A fit of a random layer with the verdict and the select error given."""
    weights = Weights.of(AttentionLayer.random(heads, 5))
    plain = Fit(weights, None, verdict, error, error, 300, by, heads, False, None, {})
    return dataclasses.replace(plain, **changes)


FEW, MISFITS = Need(Outcome.TOO_FEW_EXAMPLES, 900), Need(Outcome.NOT_ATTENTION)
