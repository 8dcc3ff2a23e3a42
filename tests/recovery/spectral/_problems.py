"""Small prepared problems for the tests of the spectral phases."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.engine import Stop, Tools
from attnlearn.recovery.spectral import Problem, State, spectral_phases
from attnlearn.recovery.spectral._assemble import SpectralConfig
from attnlearn.recovery.spectral._fallback import or_fallback
from attnlearn.recovery.spectral._moment import moment
from attnlearn.solve._split import Split


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


def problem(layer: AttentionLayer, x: np.ndarray, **options) -> Problem:
    return Problem(as_examples(x, layer(x)), Split.make(len(x)), **options)


def run(problem: Problem, upto: str, seed: int = 0, every: bool = True) -> tuple[State, dict[str, dict]]:
    """The state after phase `upto`, and the evidence of every phase; a `Stop` where one leaves the rest to the fallbacks.

    The moment is that of every example, unless it may stop earlier.
    """
    state, evidence = State(), {}
    phases = dict(spectral_phases(SpectralConfig()))
    phases |= {"moment": or_fallback(partial(moment, every=True))} if every else {}
    for name, phase in phases.items():
        state, evidence[name] = phase(problem, state, Tools(seed=seed))
        if "stopped" in evidence[name]:
            raise Stop(evidence[name]["stopped"], evidence[name], state)
        if name == upto:
            return state, evidence
    raise AssertionError(f"no phase {upto}")


def score_error(state: State, truth: AttentionLayer, layer: AttentionLayer) -> np.ndarray:
    """For each true head the relative error of (Theta, c) of the nearest found one, as white tokens see it."""

    def white(some: AttentionLayer) -> np.ndarray:
        theta = state.basis.T @ some.theta @ state.basis
        c = (some.query_bias + np.einsum("mde,d->me", some.theta, state.mean)) @ state.basis
        return np.concatenate([theta, c[:, None]], axis=1).reshape(some.num_heads, -1)

    true, found = white(truth), white(layer)
    distance = np.linalg.norm(true[:, None] - found[None], axis=2)
    return distance.min(axis=1) / np.linalg.norm(true, axis=1)
