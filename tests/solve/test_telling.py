"""Sequences that tell most of saturated heads come first, by their tokens alone."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._telling import telling_order


def saturated(heads=(1.0, 30.0), dim=6, causal=False):
    """A layer whose heads have scores of these sizes."""
    layer = AttentionLayer.random(len(heads), dim, scale=1.0, seed=0, causal=causal)
    return layer.replace(theta=layer.theta * np.array(heads)[:, None, None])


def undecided(layer, x, mask=None):
    """1 - sum_b alpha_ab^2 of the last head, summed over the rows of every sequence."""
    alpha = layer.patterns(x, mask)[:, -1]
    return np.sum(alpha.sum(axis=2) - np.sum(alpha**2, axis=2), axis=1)


def tokens(number=600, k=5, dim=6):
    return np.random.default_rng(0).standard_normal((number, k, dim))


def order(layer, x, mask=None):
    found = telling_order(layer.form, x, mask, layer.visible)
    assert found is not None
    return found


def test_no_order_where_no_head_is_saturated():
    layer = saturated((1.0, 1.0))
    assert telling_order(layer.form, tokens(), None, layer.visible) is None


@pytest.mark.parametrize("causal", [False, True])
def test_rows_in_which_the_saturated_head_is_undecided_come_first(causal):
    layer, x = saturated(causal=causal), tokens()
    found = order(layer, x)
    assert sorted(found) == list(range(len(x)))
    by_sequence = undecided(layer, x)[found]
    assert by_sequence[:150].mean() > 1.5 * by_sequence.mean()


def test_padding_tells_nothing():
    layer, x = saturated(), tokens()
    mask = np.ones(x.shape[:2], bool)
    mask[::2, 2:] = False
    found = order(layer, x, mask)
    padded = x.copy()
    padded[~mask] = 1e3
    assert np.array_equal(found, order(layer, padded, mask))
    assert np.mean(found[:100] % 2 == 0) < 0.3  # two tokens are seldom as undecided as five


def test_a_head_that_never_wavers_is_left_out():
    layer = saturated((30.0, 1e9))
    found = order(layer, tokens())
    assert sorted(found) == list(range(600))
