"""Bilinear scores: their matrices, factors and rank."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.scores import Bilinear


def test_factors_give_the_best_approximation_of_their_rank(rng):
    theta = rng.standard_normal((2, 5, 5))
    whole = Bilinear.whole(theta, np.zeros((2, 5)))
    scores, values = whole.of_rank(3), np.linalg.svd(theta, compute_uv=False)
    off = np.linalg.norm(scores.theta() - theta, axis=(1, 2))
    np.testing.assert_allclose(off, np.linalg.norm(values[:, 3:], axis=1))
    assert scores.rank == 3
    assert whole.of_rank(5).rank is None


def test_columns_that_a_head_does_not_have_are_zero(rng):
    theta = rng.standard_normal((2, 5, 1)) @ rng.standard_normal((2, 1, 5))
    scores = Bilinear.whole(theta, np.zeros((2, 5))).of_rank(3, rounding=1e-14)
    assert not scores.a[:, :, 1:].any()
    assert not scores.b[:, :, 1:].any()


@pytest.mark.parametrize("rank", [None, 2])
def test_scores_are_the_bilinear_form(rng, rank):
    scores = Bilinear.whole(rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4))).of_rank(rank)
    x = rng.standard_normal((3, 5, 4))
    found, _ = scores.logits(x, np.swapaxes(x, 1, 2).copy())
    wanted = (
        np.einsum("nad,mde,nbe->namb", x, scores.theta(), x) + np.einsum("md,nbd->nmb", scores.c, x)[:, None]
    )
    np.testing.assert_allclose(found, wanted, atol=1e-12)
