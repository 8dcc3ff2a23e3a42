"""Attention of one chunk: mixed tokens times [W; b] are the outputs."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.scores._products import turn
from attnlearn.solve._attend import mixed, patterns, split_linear


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_mixed_tokens_give_the_outputs(rng, seed, rank, causal):
    layer = AttentionLayer.random(2, 5, rank=rank, bias=True, causal=causal, seed=seed)
    x, mask = rng.standard_normal((6, 4, 5)), np.ones((6, 4), bool)
    mask[:, 3] = False
    x[~mask] = 0
    keep = mask.astype(float)
    alpha, _ = patterns(layer.form.of_rank(rank), x, turn(x), keep, causal)
    linear = np.concatenate([layer.w.reshape(-1, 5), layer.output_bias[None]])
    found = (mixed(alpha, x, keep) @ linear).reshape(6, 4, 5)
    np.testing.assert_allclose(found[mask], layer(x, mask)[mask], atol=1e-12)
    w, b = split_linear(linear, 2)
    np.testing.assert_array_equal(w, layer.w)
    np.testing.assert_array_equal(b, layer.output_bias)
