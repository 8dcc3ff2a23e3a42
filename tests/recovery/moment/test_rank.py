"""The rank: read off where it is clearly low, and left free where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.recovery.moment._rank import infer_rank
from tests.recovery._problems import made_moment, made_signals, problem, start, tokens


@pytest.mark.parametrize("bias", [False, True])
def test_rank_is_inferred(seed, rng, bias):
    low = AttentionLayer.random(2, 24, rank=3, seed=seed, bias=bias)
    assert start(problem(low, tokens(rng, "normal", 10_000, 6, 24)), seed).rank == 3
    whole = AttentionLayer.random(2, 12, seed=seed)
    assert start(problem(whole, tokens(rng, "normal", 6000, 6, 12)), seed).rank is None


@pytest.mark.parametrize(("true", "expected"), [(1, 1), (3, 3), (5, 5), (8, None), (12, None)])
def test_singular_values_above_the_noise_are_the_rank(rng, true, expected):
    r, heads = 12, 2
    scores = np.zeros((heads, r + 1, r))
    scores[:, :r] = AttentionLayer.random(heads, r, rank=true, seed=1).theta
    scores[:, :r] += 1e-6 * rng.standard_normal((heads, r, r))
    shown = made_moment(np.full(heads, 3.0), floor=1e-4, directions=r)
    rank, spectrum, edge = infer_rank(made_signals(r), shown, np.eye(heads), scores)
    assert rank == expected
    assert spectrum.shape == (heads, r)
    assert edge.shape == (heads,)


def test_heads_that_attend_by_their_bias_alone_have_no_rank():
    scores = np.zeros((2, 7, 6))
    scores[:, -1] = 1.0
    shown = made_moment(np.full(2, 3.0), floor=0.1, directions=6)
    assert infer_rank(made_signals(6), shown, np.eye(2), scores)[0] is None
