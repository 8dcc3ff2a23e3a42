"""Scores: their matrices, their rank, their count, and the patterns that follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._attention import turn
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._scores import Scores, mixed, patterns, split_linear


def test_factors_give_the_best_approximation_of_their_rank(rng):
    theta = rng.standard_normal((2, 5, 5))
    scores = Scores.from_theta(theta, np.zeros((2, 5)), 3)
    values = np.linalg.svd(theta, compute_uv=False)
    off = np.linalg.norm(scores.theta() - theta, axis=(1, 2))
    np.testing.assert_allclose(off, np.linalg.norm(values[:, 3:], axis=1))
    assert scores.rank == 3
    assert Scores.from_theta(theta, np.zeros((2, 5)), 5).rank is None


def test_columns_that_a_head_does_not_have_are_zero(rng):
    theta = rng.standard_normal((2, 5, 1)) @ rng.standard_normal((2, 1, 5))
    scores = Scores.from_theta(theta, np.zeros((2, 5)), 3)
    assert not scores.a[:, :, 1:].any()
    assert not scores.b[:, :, 1:].any()


@pytest.mark.parametrize("rank", [None, 2])
def test_a_vector_keeps_its_shape(rng, rank):
    scores = Scores.from_theta(rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4)), rank)
    again = scores.shaped(scores.flat())
    np.testing.assert_array_equal(again.theta(), scores.theta())
    np.testing.assert_array_equal(again.c, scores.c)


@pytest.mark.parametrize("rank", [None, 2])
def test_unknowns_are_the_rank_of_the_tangent_space(rng, rank):
    """The gauge of factors is not counted: the derivative of a b^T has 2 d r - r^2 directions."""
    scores = Scores.from_theta(rng.standard_normal((1, 4, 4)), np.zeros((1, 4)), rank)
    if rank is None:
        assert scores.unknowns() == 20
        return
    a, b = scores.a[0], scores.b[0]
    columns = [np.outer(u, b[:, j]).ravel() for j in range(rank) for u in np.eye(4)]
    columns += [np.outer(a[:, j], u).ravel() for j in range(rank) for u in np.eye(4)]
    assert scores.unknowns() == np.linalg.matrix_rank(np.stack(columns)) + 4


def test_scores_want_twice_the_equations_in_the_directions_they_can_change():
    scores = Scores(np.zeros((8, 40, 40)), None, np.zeros((8, 40)))
    wanted = scores.sequences_wanted(out=40, tokens=3, causal=False, equations=4, least_rows=0)
    assert wanted == 2 * 4 * scores.unknowns() / 16 / 3  # 8 heads, two keys beside the first
    assert scores.sequences_wanted(40, 3, True, 4, 0) == 2 * wanted
    assert scores.sequences_wanted(40, 3, False, 4, 10**9) == 10**9 / 3
    assert (
        Scores(np.zeros((1, 2, 2)), None, np.zeros((1, 2))).sequences_wanted(2, 4, False)
        == calibration.LEAST_ROWS / 4
    )


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_mixed_tokens_give_the_outputs(rng, seed, rank, causal):
    layer = AttentionLayer.random(2, 5, rank=rank, bias=True, causal=causal, seed=seed)
    x, mask = rng.standard_normal((6, 4, 5)), np.ones((6, 4), bool)
    mask[:, 3] = False
    x[~mask] = 0
    keep = mask.astype(float)
    scores = Scores.from_theta(layer.theta, layer.query_bias, rank)
    p = mixed(patterns(scores, x, turn(x), keep, causal).alpha, x, keep)
    linear = np.concatenate([layer.w.reshape(-1, 5), layer.output_bias[None]])
    np.testing.assert_allclose((p @ linear).reshape(6, 4, 5)[mask], layer(x, mask)[mask], atol=1e-12)
    w, b = split_linear(linear, 2)
    np.testing.assert_array_equal(w, layer.w)
    np.testing.assert_array_equal(b, layer.output_bias)
