"""Unmixing: a start for the fit that is close to the heads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery.moment._unmix import unmix
from attnlearn.solve._regress import regress
from tests.recovery._problems import counted, moment, problem, score_error, signals, start, tokens


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"bias": True, "causal": True}])
def test_start_for_the_fit_is_close(seed, rng, options):
    layer = AttentionLayer.random(3, 16, rank=6, seed=seed, **options)
    whole = problem(layer, tokens(rng, "normal", 8000, 6, 16))
    begun = start(whole, seed)
    found = begun.weights.layer
    assert found.causal is layer.causal
    assert score_error(signals(whole, seed), layer, found).max() < 0.35
    assert not found.w.any()  # they follow from the scores: the fit finds them
    side, x = whole.fit_side(1_000), tokens(rng, "normal", 200, 6, 16)
    w, b, _ = regress(found.theta, found.query_bias, side.x, side.y, causal=found.causal)
    found = found.replace(w=w, output_bias=b)
    error = np.linalg.norm(found(x) - layer(x)) / np.linalg.norm(layer(x) - layer(x).mean(axis=(0, 1)))
    assert error < 0.3
    assert not begun.swapped


def test_other_output_dimension_and_masks(seed, rng):
    square = AttentionLayer.random(3, 16, rank=6, bias=True, seed=seed)
    layer = square.replace(w=square.w[:, :, :10], output_bias=square.output_bias[:10])
    x = tokens(rng, "normal", 8000, 7, 16)
    mask = np.arange(7) < rng.integers(4, 8, size=len(x))[:, None]
    whole = problem(layer, x, mask=mask)
    begun = start(whole, seed)
    assert begun.weights.heads == 3
    assert score_error(signals(whole, seed), layer, begun.weights.layer).max() < 0.35


@pytest.mark.slow
def test_correlated_normalized_tokens(seed, rng):
    layer = AttentionLayer.random(6, 32, rank=8, seed=seed)
    x = tokens(rng, "correlated", 20_000, 8, 32) * np.sqrt(np.logspace(0, -3, 32))
    x -= x.mean(axis=2, keepdims=True)
    x /= x.std(axis=2, keepdims=True)
    whole = problem(layer, x)
    begun = start(whole, seed)
    assert begun.weights.heads == 6
    assert score_error(signals(whole, seed), layer, begun.weights.layer).max() < 0.5


def test_heads_on_which_the_count_did_not_agree_are_unmixed_once_more(seed, rng):
    layer = AttentionLayer.random(3, 12, seed=seed)
    whole = problem(layer, tokens(rng, "normal", 5000, 6, 12))
    found, shown, seen = signals(whole, seed), moment(whole, seed), counted(whole, seed)
    mixed = rng.standard_normal((3, 3)) @ seen.coordinates
    wrong = dataclasses.replace(seen, coordinates=mixed, agreed=False, unexplained=1.0)
    again = unmix(whole, found, shown, wrong, Tools(seed=seed))
    assert again.evidence["residual_shares"]
    assert again.unexplained < 0.5
    assert score_error(found, layer, again.weights.layer).max() < 0.35
