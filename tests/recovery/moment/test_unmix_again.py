"""Unmixing again: mixtures of the heads are turned back into heads, and heads are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery.moment._unmix_again import unmix_again
from tests.recovery._problems import problem, score_error, signals, tokens


@pytest.fixture
def truth(seed) -> AttentionLayer:
    return AttentionLayer.random(3, 10, seed=seed, scale=0.5)


def mixture(layer: AttentionLayer, rng: np.random.Generator) -> AttentionLayer:
    """Heads with the same first order: Theta_i = sum_j A_ij Theta_j, W_i = sum_j (A^-T)_ij W_j."""
    a = np.linalg.qr(rng.standard_normal((layer.num_heads,) * 2))[0]
    return layer.replace(theta=np.tensordot(a, layer.theta, 1), w=np.tensordot(a, layer.w, 1))


def test_a_mixture_of_the_heads_is_unmixed(truth, rng, seed):
    whole = problem(truth, tokens(rng, "normal", 4000, 5, 10))
    found, mixed = signals(whole), mixture(truth, rng)
    assert score_error(found, truth, mixed).max() > 0.3
    again = unmix_again(whole, found, mixed, Tools(seed=seed))
    assert again is not None
    assert again.num_heads == 3
    assert score_error(found, truth, again).max() < 0.05


def test_heads_that_are_right_are_left_alone(truth, rng, seed):
    whole = problem(truth, tokens(rng, "normal", 4000, 5, 10))
    assert unmix_again(whole, signals(whole), truth, Tools(seed=seed)) is None


def test_one_head_and_heads_that_are_nothing_cannot_be_mixed(truth, rng, seed):
    whole = problem(truth, tokens(rng, "normal", 2000, 5, 10))
    found, tools = signals(whole), Tools(seed=seed)
    one = AttentionLayer(truth.theta[:1], truth.w[:1])
    flat = truth.replace(theta=truth.theta * np.array([0, 1, 1])[:, None, None])
    assert unmix_again(whole, found, one, tools) is None
    assert unmix_again(whole, found, flat, tools) is None
