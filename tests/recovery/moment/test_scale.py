"""The token scale: weak and saturated layers are brought to where attention shows."""

from __future__ import annotations

import pytest

from attnlearn import AttentionLayer, data
from attnlearn.data import as_examples
from attnlearn.recovery._statistics import nonlinear_share
from attnlearn.recovery.moment._scale import choose_scale


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_chosen_scale_makes_attention_visible(seed, scale):
    layer = AttentionLayer.random(2, 8, scale=scale, seed=seed)
    model = data.Gaussian(5, 8)
    factor = choose_scale(model, layer, seed=seed)
    x = factor * model.sample(500, seed=seed + 1)
    assert 0.3 < nonlinear_share(as_examples(x, layer(x))) < 0.6


def test_tokens_that_show_the_layer_are_left_alone(seed):
    layer = AttentionLayer.random(2, 8, scale=1.2, seed=seed)
    assert choose_scale(data.Gaussian(5, 8), layer, seed=seed) == 1.0
