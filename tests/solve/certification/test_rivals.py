"""The second opinion: rivals are found where there are any, and agree with the layer; elsewhere none is found."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve.certification._rivals import Opinion, second_opinion, starts_wanted

D = 4
Rng = np.random.Generator


def antipodal(rng: Rng, number: int) -> np.ndarray:
    u = rng.standard_normal((number, 2, D))
    return np.concatenate([u, -u], axis=1)


def mirrored(rng: Rng, number: int) -> np.ndarray:
    u = rng.standard_normal((number, 2, D))
    return np.concatenate([u, u * np.array([1.0, 1.0, 1.0, -1.0])], axis=1)


def cyclic(rng: Rng, number: int) -> np.ndarray:
    u = rng.standard_normal((number, 1, D))
    return np.concatenate([np.roll(u, turn, axis=2) for turn in range(D)], axis=1)


def twice(rng: Rng, number: int) -> np.ndarray:
    return np.repeat(rng.standard_normal((number, 2, D)), 2, axis=1)


def gaussian(rng: Rng, number: int) -> np.ndarray:
    return rng.standard_normal((number, 4, D))


def centred(rng: Rng, number: int) -> np.ndarray:
    x = gaussian(rng, number)
    return x - x.mean(axis=1, keepdims=True)


def words(rng: Rng, number: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((60, D))[rng.integers(0, 60, (number, 4))]


def opinion(
    layer: AttentionLayer, make: Callable[[Rng, int], np.ndarray], seed: int, thorough: bool
) -> Opinion:
    x = make(np.random.default_rng([seed, 1]), 300)
    return second_opinion(layer, Batch(x, np.zeros((300, 4, layer.out_dim))), thorough=thorough, seed=seed)


@pytest.fixture
def layer(seed: int) -> AttentionLayer:
    return AttentionLayer.random(num_heads=2, dim=D, bias=True, seed=seed)


@pytest.mark.parametrize("make", [antipodal, mirrored, cyclic, twice])
def test_a_rival_is_found_that_gives_the_same_outputs(make, layer, seed):
    found = opinion(layer, make, seed, thorough=True)
    rival = found.rival
    assert rival is not None
    x = make(np.random.default_rng([seed, 2]), 100)
    wanted = layer(x)
    assert np.linalg.norm(rival.layer(x) - wanted) <= 1e-8 * np.linalg.norm(wanted)
    assert rival.distance > calibration.APART_LEAST
    assert rival.residual <= calibration.NO_VARIANCE
    free = gaussian(np.random.default_rng([seed, 3]), 100)  # the same function here, another one elsewhere
    assert np.linalg.norm(rival.layer(free) - layer(free)) > 1e-3 * np.linalg.norm(layer(free))
    if rival.layer.num_heads == layer.num_heads:
        assert distance(rival.layer, layer).max > 1e-3


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("make", [gaussian, centred, words])
def test_no_rival_is_found_where_there_is_none(make, thorough, layer, seed):
    found = opinion(layer, make, seed, thorough)
    assert found.rival is None
    assert found.agreed == (starts_wanted() if thorough else found.tried - 2 * layer.num_heads)
    assert found.tried >= 2 * layer.num_heads + found.agreed


@pytest.mark.parametrize("causal", [False, True])
def test_masked_and_causal_layers_have_no_rival_on_free_tokens(causal, layer, seed, rng):
    x = gaussian(rng, 400)
    mask = np.arange(4) < rng.integers(3, 5, 400)[:, None]
    held = Batch(x, np.zeros((400, 4, D)), mask)
    assert second_opinion(layer.replace(causal=causal), held, seed=seed).rival is None


def test_float32_tokens_are_judged_at_their_rounding(layer, seed):
    x = antipodal(np.random.default_rng(seed), 300).astype(np.float32)
    held = Batch(x, np.zeros((300, 4, D), np.float32))
    rival = second_opinion(layer.astype(np.float32), held, seed=seed).rival
    assert rival is not None
    assert rival.layer.dtype == np.float64
    free = gaussian(np.random.default_rng(seed), 300).astype(np.float32)
    assert second_opinion(layer.astype(np.float32), Batch(free, held.y), seed=seed).rival is None


def test_what_is_shown_is_json(layer, seed):
    rival = opinion(layer, antipodal, seed, thorough=False).rival
    shown = json.loads(json.dumps(rival.to_json()))
    found, other = shown.pop("found"), shown.pop("other")
    assert shown == {
        "how": "mirrored",
        "head": 0,
        "distance": rival.distance,
        "residual": rival.residual,
        "heads": rival.layer.num_heads,
    }
    np.testing.assert_allclose(found, -np.array(other), atol=1e-3)  # maps for display have four digits
