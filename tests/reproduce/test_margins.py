"""Margins of the mixture: the bound with noise is never above what it bounds, and looking at relevant tokens beats every start."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnlearn.data import TokenizedMixture
from attnlearn.reproduce._margins import attention_margin, attention_margin_bound, unattained_claim
from attnlearn.train import loss_and_gradient


def first_step(mixture: TokenizedMixture, num: int, seed: int) -> np.ndarray:
    x, y = mixture.sample(num, seed=seed)
    return np.einsum("n,nd->d", y, x.mean(axis=1)) / (2 * num)


def test_the_margin_is_the_derivative_along_the_direction():
    mixture = TokenizedMixture(tokens=6, dim=8, noise=0.2, relevant=0.4)
    u, (x, y) = first_step(mixture, 50, 7), mixture.sample(1, seed=1)
    alpha = np.array([1.0, -1.0, 1.0])
    start = alpha[:, None, None] * np.broadcast_to(u, (3, 6, 8))
    q = mixture.signals[:2].T @ mixture.signals[:2]
    direction = alpha[:, None, None] * q / (mixture.signal**2 * math.sqrt(2 * 3))
    assert np.linalg.norm(direction) == pytest.approx(1)
    losses = [loss_and_gradient(start, t * direction, x, y)[0] for t in (-1e-5, 1e-5)]
    margins = [-math.log(math.expm1(loss)) for loss in losses]  # y Phi
    assert (margins[1] - margins[0]) / 2e-5 == pytest.approx(attention_margin(mixture, u, x, y), rel=1e-5)


def test_the_bound_is_below_the_margin_in_500_draws():
    """At confidence 1 - 0.05 at most 25 of 500 may fail on average; the unions are loose, so none does."""
    failed = said = 0
    for draw in range(500):
        rng = np.random.default_rng(draw)
        mixture = TokenizedMixture(
            tokens=int(rng.integers(5, 25)), dim=int(rng.integers(8, 20)), relevant=float(rng.uniform(0.1, 0.7)),
            noise=float(10 ** rng.uniform(-3, -1)), noise_law=("sphere", "gaussian")[draw % 2],
        )  # fmt: skip
        u = first_step(mixture, 400, 10_000 + draw)
        bound = attention_margin_bound(mixture, u, 30, 0.05)
        failed += bound > attention_margin(mixture, u, *mixture.sample(30, seed=draw))
        said += bound > 0
    assert failed == 0
    assert said > 100


def test_weights_that_look_at_relevant_tokens_have_margins_that_no_start_has(seed):
    claim = unattained_claim(seed=seed, quick=True)
    best = max(max(found) for found in claim["starts"].values())
    assert min(claim["looking"]["8"]) > 1.5 * best
    assert claim["looking"]["0"] == pytest.approx(claim["starts"]["first-step"])
