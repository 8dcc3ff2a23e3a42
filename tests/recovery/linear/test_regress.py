"""Least squares: the optimum, and when the examples determine it."""

from __future__ import annotations

import numpy as np

from attnlearn import LinearAttentionLayer
from attnlearn.recovery.linear._features import Coordinates
from attnlearn.recovery.linear._regress import regress, residual_of
from attnlearn.solve._batch import Batch


def test_it_is_the_least_squares_solution_of_any_outputs(rng):
    x, y = rng.standard_normal((200, 4, 3)), rng.standard_normal((200, 4, 2))
    side = Batch(x, y)
    fit = regress(Coordinates.fixed_on(side, False, True), side)
    features = np.concatenate([part.features for part in fit.coordinates.rows(side)])
    expected, *_ = np.linalg.lstsq(features, y.reshape(-1, 2), rcond=None)
    assert np.allclose(fit.coefficients, expected, atol=1e-10)
    values = np.linalg.svd(features, compute_uv=False) ** 2 / len(features)
    assert 0 < fit.smallest <= values[-1]
    assert fit.smallest > 0.99 * values[-1]
    assert np.isclose(fit.error, residual_of(fit, side))


def test_blocks_hold_whole_units(rng):
    x = rng.standard_normal((600, 4, 3))
    layer = LinearAttentionLayer.random(1, 3)
    groups = np.arange(600) // 3
    side = Batch(x, layer(x), groups=groups)
    fit = regress(Coordinates.fixed_on(side, False, True), side)
    assert len(fit.blocks) == 6
    assert min(fit.blocks) > 0


def test_too_few_rows_determine_nothing(rng):
    x = rng.standard_normal((5, 4, 3))
    side = Batch(x, rng.standard_normal((5, 4, 3)))
    fit = regress(Coordinates.fixed_on(side, False, True), side)
    assert fit.smallest <= 0
    assert fit.error < 1e-10
