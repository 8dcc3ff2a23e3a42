"""The preconditioner: adjoint maps, curvature about one, and the coupling it is made of."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.scores import Bilinear
from attnlearn.solve._chunks import cut
from attnlearn.solve._linearize import linearize
from attnlearn.solve._precondition import curvature, precondition
from attnlearn.solve._regress import eliminate
from attnlearn.solve._step import projected_product


@pytest.fixture(params=[None, 2], ids=["whole", "factors"])
def at(request, rng, seed):
    layer = AttentionLayer.random(2, 5, rank=request.param, seed=seed)
    x = rng.standard_normal((400, 4, 5))
    scores, chunks = (
        Bilinear.whole(layer.theta, layer.query_bias).of_rank(request.param),
        cut(x, layer(x), None),
    )
    fit = eliminate(scores, chunks, False)
    return linearize(scores, fit.linear, fit.factor, chunks, False)


def test_transpose_is_the_adjoint(at, rng):
    by = precondition(at)
    t, g = (at.scores.shaped(rng.standard_normal(at.scores.flat().size)) for _ in range(2))
    assert by.apply(t).flat() @ g.flat() == pytest.approx(t.flat() @ by.transpose(g).flat(), rel=1e-5)


def test_curvature_is_about_one(at, rng):
    by = precondition(at)
    for _ in range(5):
        t = rng.standard_normal(at.scores.flat().size)
        t /= np.linalg.norm(t)
        image, _ = projected_product(at, by, t)
        assert 0.02 < t @ image < 20


def test_the_coupling_is_the_sum_that_defines_it(at):
    """G_ij = sum_a C_a^i W_i W_j^T C_a^j^T with C_a^i = sum_b alpha_ab x_b (x_b - xbar_a)^T."""
    found, second, met = curvature(at)
    m, d = at.scores.c.shape
    w = at.linear[:-1].reshape(m, d, -1)
    wanted = np.zeros((m * d, m * d))
    for place in range(len(at.chunks)):
        local = at.local.at(place)
        for x, alpha in zip(local.x, local.alpha):
            for row in alpha:
                parts = [(a[:, None] * x).T @ (x - a @ x) @ w[i] for i, a in enumerate(row)]
                stacked = np.concatenate(parts)
                wanted += stacked @ stacked.T
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8 * np.abs(wanted).max())
    tokens = np.concatenate([chunk.x.reshape(-1, d) for chunk in at.chunks])
    np.testing.assert_allclose(second, tokens.T @ tokens / len(tokens), rtol=1e-6)
    weights = np.concatenate([at.local.at(place).alpha for place in range(len(at.chunks))])
    np.testing.assert_allclose(met, np.sum(weights * (1 - weights), axis=0), rtol=1e-5)


def test_without_coupling_heads_are_apart(at):
    by = precondition(at, joint=False)
    if at.scores.b is None:
        return
    r = at.scores.rank
    assert not by.a_right[:r, r:].any()
    assert not by.a_right[r:, :r].any()
