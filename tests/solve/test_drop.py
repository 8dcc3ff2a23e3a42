"""Drop: the order in which heads go, and that the needless ones go first."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer, data
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression, drop_costs, drop_order, select
from attnlearn.solve._regress import regress


def test_needless_heads_go_first_and_cost_nothing(seed: int) -> None:
    layer = AttentionLayer.random(5, 6, seed=seed)
    theta, w = layer.theta.copy(), layer.w.copy()
    theta[3] = theta[0]  # seen twice
    w[4] = 0  # does nothing
    layer = layer.replace(theta=theta, w=w)
    x = data.Gaussian(5, 6).sample(600, seed=seed + 4)
    order = list(drop_order(layer, Batch(x, layer(x))))
    assert [len(kept) for kept, _ in order] == [4, 3, 2, 1]
    needed = set(order[1][0].tolist())
    assert needed in ({0, 1, 2}, {1, 2, 3})
    assert max(cost for _, cost in order[:2]) < 1e-5 < 0.05 < min(cost for _, cost in order[2:])


def test_every_price_is_that_of_the_heads_before_it(seed: int) -> None:
    layer = AttentionLayer.random(4, 6, bias=True, seed=seed)
    x = data.Gaussian(5, 6).sample(600, seed=seed + 4)
    ground = WhitenedRegression(Batch(x, layer(x)), layer.causal)
    inside = ground.enter(layer)
    before = 0.0
    for kept, cost in drop_order(layer, Batch(x, layer(x))):
        _, _, residual = regress(layer.theta[kept], layer.query_bias[kept], x, layer(x))
        np.testing.assert_allclose(np.hypot(before, cost), residual, rtol=1e-5)
        before = residual
    first = next(drop_order(layer, Batch(x, layer(x))))[1]
    np.testing.assert_allclose(first**2, drop_costs(inside, ground).min(), rtol=1e-9)
    assert len(select(inside, np.array([2, 0])).theta) == 2
