"""Causal layers are told from others, also beside padding, noise and tokens in a subspace; words of a list are seen to repeat."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._tokens import causal_sequences, repeated, unexplained


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_causal_layer_looks_so(rng, seed, causal, padded, noise):
    layer = AttentionLayer.random(2, 6, bias=True, seed=seed, causal=causal)
    x = rng.standard_normal((causal_sequences(6), 5, 6))
    mask = np.arange(5) < rng.integers(3, 6, len(x))[:, None] if padded else None
    y = layer(x, mask)
    assert unexplained(x, y + noise * y.std() * rng.standard_normal(y.shape), mask).causal is causal


def test_tokens_in_a_subspace_are_no_obstacle(rng, seed):
    layer = AttentionLayer.random(2, 6, seed=seed, causal=True)
    x = rng.standard_normal((causal_sequences(6), 5, 3)) @ rng.standard_normal((3, 6)) + 1.0
    assert unexplained(x, layer(x), None).causal


def test_outputs_that_are_linear_throughout_say_nothing(rng):
    x = rng.standard_normal((300, 4, 3))
    assert not unexplained(x, x @ rng.standard_normal((3, 2)), None).causal


def test_words_repeat_and_fair_signs_may(rng):
    words = rng.standard_normal((50, 8))[rng.integers(0, 50, 400)]
    signs = rng.choice([-1.0, 1.0], (400, 3))
    assert repeated(words, two_values=False)
    assert not repeated(rng.standard_normal((400, 8)), two_values=False)
    assert not repeated(signs, two_values=True)
    assert repeated(signs, two_values=False)
