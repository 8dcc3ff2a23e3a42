"""Logits read from queries of several fixed tokens are those of the layer."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.extraction._complete import value_rank
from attnlearn.extraction._equations import tokens_told_apart
from attnlearn.extraction._state import State
from attnlearn.extraction._table import ScoreTable

D = 12


def table_of(layer, tokens) -> ScoreTable:
    known = {"w": layer.w, "bias": layer.output_bias, "total": layer.w.sum(0), "causal": layer.causal}
    return ScoreTable(tokens, State(**known))


def logits(layer, tokens) -> np.ndarray:
    """z_i(a, b) = (t_a^T Theta_i + c_i^T)(t_b - t_a)."""
    rows = tokens @ layer.theta + layer.query_bias[:, None]
    every = rows @ tokens.T
    return every - np.einsum("mad,ad->ma", rows, tokens)[:, :, None]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_logits_are_exact(seed, rng, causal, k):
    layer = AttentionLayer.random(2, D, bias=True, seed=seed, causal=causal)
    tokens = rng.standard_normal((D + 1, D)) / 2
    index = np.stack([rng.permutation(D + 1)[:k] for _ in range(9)])
    table = table_of(layer, tokens)
    table.read(index, layer(tokens[index]))
    seen = table.trust[0] > 0
    pairs = {(sequence[a], sequence[b]) for sequence in index for a in range(k) for b in range(k)
             if a > b or (a < b and not causal)}  # fmt: skip
    assert seen.sum() == len(pairs)
    found = table.sums[:, seen] / table.trust[:, seen]
    assert np.abs(found - logits(layer, tokens)[:, seen]).max() < 1e-10


def test_rows_follow_inside_their_span(seed, rng):
    layer = AttentionLayer.random(2, D, rank=2, seed=seed)
    tokens = rng.standard_normal((D + 1, D)) / 2
    table = table_of(layer, tokens)
    index = np.stack([rng.permutation(D + 1)[:3] for _ in range(90)])
    table.read(index, layer(tokens[index]))
    for head, theta in enumerate(layer.theta):
        span = np.linalg.svd(theta)[2][:2].T
        assert np.abs(table.rows(head, span) - tokens @ theta).max() < 1e-8


def test_a_saturated_pair_counts_for_little(seed, rng):
    layer = AttentionLayer.random(2, D, seed=seed)
    tokens = rng.standard_normal((D + 1, D)) / 2
    tokens[0] *= 100
    table = table_of(layer, tokens)
    index = np.array([[0, 1, 2], [3, 4, 5]])
    table.read(index, layer(tokens[index]))
    assert np.isfinite(table.sums).all()
    assert table.trust[:, 0, 1:3].max() < 1e-3 * table.trust[:, 3, 4:6].min()


def test_tokens_of_a_query(rng):
    wide, low = (rng.standard_normal((4, 64, rank)) @ rng.standard_normal((4, rank, 64)) for rank in (64, 4))
    assert value_rank(wide) > 50
    assert value_rank(low) == 4
    assert tokens_told_apart(4, 64, 64, 16) == 10  # 0.6 of 64 outputs for 4 heads
    assert tokens_told_apart(4, 64, 64, 5) == 5
    assert tokens_told_apart(4, 64, 4, 16) == 3
    assert tokens_told_apart(4, 6, 4, 16) == 2
