"""The second opinion on scores with positions: a head and its negative are one where every query sees two keys, and only there."""

from __future__ import annotations

import time

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.scores import Offsets, Relative, Visible
from attnlearn.solve._batch import Batch
from attnlearn.solve.certification._mirrors import mirrored_opinion, rounding_of

M, D, K = 2, 4, 6


@pytest.fixture
def layer(rng, seed) -> AttentionLayer:
    base = AttentionLayer.random(M, D, seed=seed)
    table = Relative(base.form, rng.standard_normal((M, 2 * K - 1)), Offsets("table", reach=K - 1))
    return AttentionLayer.from_scores(table, base.w, causal=Visible(True))


def held(layer: AttentionLayer, x: np.ndarray) -> Batch:
    return Batch(x, layer(x))


def test_with_two_visible_keys_the_negative_of_a_head_is_a_rival(layer, rng):
    narrow = layer.replace(causal=Visible(True, 1))
    opinion = mirrored_opinion(narrow, held(narrow, rng.standard_normal((300, K, D))))
    assert opinion.rival is not None
    assert opinion.rival.residual < 1e-10


def test_with_more_keys_no_head_has_one(layer, rng):
    opinion = mirrored_opinion(layer, held(layer, rng.standard_normal((300, K, D))))
    assert opinion.rival is None
    assert opinion.tried == M


def test_after_the_deadline_there_is_no_opinion(layer, rng):
    batch = held(layer, rng.standard_normal((30, K, D)))
    assert mirrored_opinion(layer, batch, deadline=time.monotonic() - 1) is None


def test_rounding_is_that_of_the_tokens(layer, rng):
    x = rng.standard_normal((30, K, D))
    single = Batch(x.astype(np.float32), layer(x).astype(np.float32))
    assert rounding_of(single) / rounding_of(held(layer, x)) == pytest.approx(2.0**29)
