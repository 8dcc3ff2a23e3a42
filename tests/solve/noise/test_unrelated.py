"""Outputs that have nothing to do with their tokens are told from those of any layer."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, data
from attnlearn.solve._batch import Batch
from attnlearn.solve.noise._unrelated import unrelated

SIZES = [(300, 4, 6, 2), (1000, 8, 16, 4), (1000, 3, 40, 4)]


def drawn(size: tuple[int, int, int, int], seed: int) -> tuple[np.ndarray, AttentionLayer]:
    """Tokens and a random layer."""
    num, tokens, dim, heads = size
    return data.Gaussian(tokens, dim).sample(num, seed=seed), AttentionLayer.random(heads, dim, seed=seed)


@pytest.mark.parametrize("size", SIZES)
def test_outputs_of_a_layer_follow_their_tokens_even_if_its_projections_cancel(size, seed: int) -> None:
    x, layer = drawn(size, seed)
    without_sum = AttentionLayer(layer.theta, layer.w - layer.w.mean(axis=0))
    for made in (layer, without_sum):
        assert unrelated(Batch(x, made(x)), causal=False) is None


@pytest.mark.parametrize("size", SIZES)
def test_outputs_in_another_order_do_not(size, seed: int) -> None:
    x, layer = drawn(size, seed)
    found = unrelated(Batch(x, np.roll(layer(x), 1, axis=0)), causal=False)
    assert found is not None
    assert found.name == "unrelated"
    assert f"{size[0]:,} sequences" in found.text


def test_padding_is_left_out(seed: int) -> None:
    x, layer = drawn(SIZES[0], seed)
    mask = np.random.default_rng(seed).random(x.shape[:2]) < 0.7
    mask[:, :2] = True
    y = layer(x, mask=mask)
    assert unrelated(Batch(x, y, mask), causal=False) is None
    assert unrelated(Batch(x, np.roll(y, 1, axis=0) * mask[..., None], mask), causal=False) is not None


def test_a_handful_of_sequences_does_not_tell(seed: int) -> None:
    x, layer = drawn(SIZES[0], seed)
    assert unrelated(Batch(x[:90], np.roll(layer(x[:90]), 1, axis=0)), causal=False) is None
