"""The parts of compression: costs of drops and merging."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer, data
from attnlearn.compression._start import cheapest_pair, one_fewer
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression, drop_costs
from attnlearn.solve._regress import regress
from attnlearn.solve.refinement import RefineConfig, refine

MODEL = data.Gaussian(5, 6)


def ground(layer: AttentionLayer, num: int = 600) -> WhitenedRegression:
    x = MODEL.sample(num, seed=4)
    return WhitenedRegression(Batch(x, layer(x)), layer.causal)


def test_the_price_of_a_drop_is_what_refitting_the_others_costs(seed: int) -> None:
    layer = AttentionLayer.random(3, 6, bias=True, seed=seed)
    here, x = ground(layer), MODEL.sample(600, seed=4)
    costs = drop_costs(here.enter(layer), here)
    for head in range(3):
        kept = np.delete(np.arange(3), head)
        _, _, residual = regress(layer.theta[kept], layer.query_bias[kept], x, layer(x))
        np.testing.assert_allclose(costs[head], residual**2, rtol=1e-6)


def test_near_twins_are_merged(seed: int) -> None:
    layer = AttentionLayer.random(3, 6, bias=True, seed=seed)
    theta, w = layer.theta.copy(), layer.w.copy()
    theta[2] = theta[1] + 0.1 * np.random.default_rng(seed).standard_normal((6, 6))
    layer = layer.replace(theta=theta, query_bias=layer.query_bias[[0, 1, 1]], w=w)
    here = ground(layer)
    assert set(cheapest_pair(here.enter(layer))) == {1, 2}
    start = one_fewer(layer, here)
    assert start.made_by == "merge"
    assert start.errors["merged"] < start.errors["dropped"]
    assert start.layer.num_heads == 2


def test_single_precision_heads_are_refined_at_a_rank_larger_than_theirs(seed: int) -> None:
    """Their last singular values are rounding: opened as factors they made every step fail."""
    layer = AttentionLayer.random(3, 8, rank=2, seed=seed)
    layer = AttentionLayer(*(array.astype(np.float32) for array in layer.parameters))
    x = np.random.default_rng(seed).standard_normal((600, 5, 8)).astype(np.float32)
    start = layer.replace(theta=layer.theta[:2], w=layer.w[:2], query_bias=layer.query_bias[:2])
    config = RefineConfig(max_steps=4, equations_per_unknown=np.inf)
    narrow, wide = (refine(start, x, layer(x), rank=rank, config=config) for rank in (2, 4))
    assert wide.residual <= 1.001 * narrow.residual
    assert any(step["accepted"] for step in wide.steps)
