"""The noise floor: computed as it is measured, and the number of examples that follows from it."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.recovery.moment._floor import examples_needed, measured_floor, noise_floor
from tests.recovery._problems import moment, problem, signals, tokens

from .test_operator import operator_of


@pytest.mark.parametrize("kind", ["normal", "boolean"])
def test_computed_floor_is_the_measured_one(rng, kind):
    whole = problem(AttentionLayer.random(2, 16, rank=4, seed=1), tokens(rng, kind, 3000, 6, 16))
    operator = operator_of(whole)
    ratio = measured_floor(operator, rng) / noise_floor(operator, signals(whole))
    assert 0.85 < ratio < 1.3


def test_the_floor_falls_with_the_root_of_the_examples(rng):
    layer, x = AttentionLayer.random(2, 8, seed=1), tokens(rng, "normal", 4000, 5, 8)
    few, many = (problem(layer, x[:num]) for num in (1000, 4000))
    floors = [noise_floor(operator_of(whole), signals(whole)) for whole in (few, many)]
    assert floors[0] / floors[1] == pytest.approx(2, rel=0.1)


def test_examples_needed_grow_as_the_heads_sink_into_the_floor(rng):
    whole = problem(AttentionLayer.random(2, 8, seed=1), tokens(rng, "normal", 1000, 5, 8))
    found, shown = signals(whole), moment(whole)
    needed = [examples_needed(whole, found, shown.values * size, shown.floor) for size in (1.0, 0.3)]
    assert whole.examples.num < needed[0] <= needed[1]
    assert all(isinstance(number, int) for number in needed)
    assert np.isfinite(needed).all()
