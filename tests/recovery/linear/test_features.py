"""The monomials: linear in the coefficients of any layer, in white coordinates."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import LinearAttentionLayer
from attnlearn.recovery.linear._features import Coordinates
from attnlearn.solve._batch import Batch


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_every_layer_is_linear_in_them(rng, causal, biases):
    x = rng.standard_normal((60, 4, 3)) @ rng.standard_normal((3, 3))
    mask = np.arange(4) < rng.integers(2, 5, (60, 1))
    layer = LinearAttentionLayer.random(2, 3, bias=biases, seed=1, causal=causal)
    side = Batch(x, layer(x, mask), mask)
    coordinates = Coordinates.fixed_on(side, causal, biases)
    parts = list(coordinates.rows(side))
    features, outputs = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("features", "outputs")
    )
    assert features.shape == (mask.sum(), coordinates.number)
    assert coordinates.number == (3 + biases) * 6 + biases
    assert np.allclose(np.mean(features**2, axis=0), 1)
    coefficients, *_ = np.linalg.lstsq(features, outputs, rcond=None)
    assert np.linalg.norm(features @ coefficients - outputs) < 1e-12 * np.linalg.norm(outputs)


def test_directions_without_tokens_are_left_out(rng):
    x = rng.standard_normal((50, 4, 2)) @ rng.standard_normal((2, 5))
    assert Coordinates.fixed_on(Batch(x, x), False, True).rank == 2
    assert Coordinates.fixed_on(Batch(0 * x, x), False, True).rank == 0
