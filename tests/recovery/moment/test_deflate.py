"""Deflation: the swap of a head is taken off, so that what follows the heads is noise."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery.moment._deflate import Deflated, passes
from attnlearn.recovery.moment._floor import noise_floor
from tests.recovery._problems import problem, signals, tokens

from .test_operator import operator_of


@pytest.fixture
def whole(seed, rng):
    return problem(AttentionLayer.random(3, 12, rank=5, seed=seed), tokens(rng, "normal", 5000, 6, 12))


def test_passes_settle_on_as_many_values_as_there_are_heads(whole, rng):
    operator = operator_of(whole)
    floor = noise_floor(operator, signals(whole))
    svd = Deflated(operator.start(rng, 24), None)
    history = passes(svd, operator, floor, 0.02, rng, Tools())
    assert svd.complete
    assert svd.heads == 3
    assert svd.apart
    assert svd.clear(1.2 * floor)
    assert len(history) <= 8
    assert np.all(np.diff(svd.values) <= 0)
    assert svd.values[3] < 1.2 * floor


def test_as_many_heads_as_are_given_are_kept(whole, rng):
    operator = operator_of(whole)
    floor = noise_floor(operator, signals(whole))
    svd = Deflated(operator.start(rng, 6), 2)
    passes(svd, operator, floor, 0.02, rng, Tools())
    assert svd.heads == 2
    assert svd.values[2] > 1.2 * floor  # what follows them is a head


def test_vectors_are_widened_and_trimmed(whole, rng):
    operator = operator_of(whole)
    floor = noise_floor(operator, signals(whole))
    svd = Deflated(operator.start(rng, 4), None)
    passes(svd, operator, floor, 0.02, rng, Tools())
    assert len(svd.values) > 4  # too few of four are noise
    svd.trim(5)
    assert len(svd.values) == len(svd.left) == len(svd.right) == 5
