"""Batches of examples, and errors of a layer on them: relative to each output, by unit, with a floor for small outputs."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import (
    Batch,
    clipped_norms,
    exactness_limit,
    example_scale,
    largest_of_groups,
    rounding_floor,
    typical_error,
    unit_errors,
    visible_keys,
)


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(2, 4, seed=seed)


def test_a_batch_has_the_examples_masks_and_units_that_were_chosen(rng):
    x, y = rng.standard_normal((6, 4, 3)), rng.standard_normal((6, 4, 2))
    mask, units, chosen = rng.random((6, 4)) < 0.7, np.arange(6) // 2, np.array([4, 1])
    mask[:, 0] = True
    taken = Batch(x, y, mask, units).take(chosen)
    read = Batch.of(as_examples(x, y, mask), chosen, units)
    for batch in (taken, read):
        np.testing.assert_array_equal(batch.x, x[chosen])
        np.testing.assert_array_equal(batch.y[batch.mask], y[chosen][mask[chosen]])
        np.testing.assert_array_equal(batch.mask, mask[chosen])
        assert batch.groups.tolist() == [2, 0]
    single = taken.astype(np.float32)
    assert single.x.dtype == single.y.dtype == np.float32
    assert single.groups is taken.groups


@pytest.mark.parametrize("causal", [False, True])
def test_queries_see_real_keys_that_are_not_later_under_a_causal_mask(rng, causal):
    mask = rng.random((5, 4)) < 0.7
    seen = visible_keys(4, mask, causal)
    for n, query, key in np.ndindex(5, 4, 4):
        assert seen[n, query, key] == (mask[n, query] and mask[n, key] and (key <= query or not causal))
    assert visible_keys(4, None, False) is None


def test_an_exact_layer_has_no_error(layer, rng):
    x = rng.standard_normal((30, 4, 4))
    held = Batch(x, layer(x))
    scale = example_scale(held)
    assert unit_errors(layer, held, scale).max() <= rounding_floor(layer, held, scale)
    assert typical_error(layer, held, scale) < 1e-12


def test_errors_are_relative_to_the_smaller_of_output_and_scale(layer, rng):
    x = rng.standard_normal((30, 4, 4))
    y = layer(x)
    wrong = y.copy()
    wrong[3] += 0.01
    held = Batch(x, wrong)
    scale = example_scale(held)
    errors = unit_errors(layer, held, scale)
    size = min(np.linalg.norm(wrong[3]), scale)
    assert errors[3] == pytest.approx(0.04 / size)
    assert typical_error(layer, held, scale) == pytest.approx(0.04 / np.sqrt(30) / scale)


def test_small_outputs_count_as_the_floor():
    outputs = np.zeros((3, 1, 1))
    outputs[:, 0, 0] = [0.0, 1.0, 100.0]
    assert clipped_norms(outputs, 10.0).tolist() == [10.0 * calibration.SMALL_ERROR, 1.0, 10.0]
    assert clipped_norms(outputs, 10.0, small=1.0).tolist() == [10.0, 10.0, 100.0]


def test_a_group_has_the_error_of_its_worst_member(layer, rng):
    assert largest_of_groups(np.array([1.0, np.nan, 2.0]), np.array([0, 0, 1]))[1] == 2.0
    assert np.isnan(largest_of_groups(np.array([1.0, np.nan]), np.array([0, 0]))[0])
    x = rng.standard_normal((4, 4, 4))
    y = layer(x)
    y[0] += 1.0
    errors = unit_errors(layer, Batch(x, y, groups=np.array(["a", "a", "b", "b"])), 1.0)
    assert errors[0] > 0.1 > 1e-12 > errors[1]


def test_padded_outputs_do_not_count(layer, rng):
    x, mask = rng.standard_normal((20, 4, 4)), np.ones((20, 4), bool)
    mask[:, 3] = False
    y = layer(x, mask)
    y[~mask] = 1e6
    assert unit_errors(layer, Batch(x, y, mask), 1.0).max() < 1e-12


@pytest.mark.parametrize(("dtype", "floor", "wanted"), [
    (np.float64, 1e-16, calibration.EXACT),
    (np.float64, 1e-12, 4e-12),
    (np.float32, 1e-7, 4e-7),
    (np.float32, 1.0, calibration.SMALL_ERROR),
])  # fmt: skip
def test_what_counts_as_exact(dtype, floor, wanted):
    assert exactness_limit(floor, np.dtype(dtype)) == pytest.approx(wanted)


def test_float32_rounds_more(layer, rng):
    x = rng.standard_normal((30, 4, 4))
    held = Batch(x, layer(x))
    floors = [rounding_floor(layer.astype(dtype), held, 1.0) for dtype in (np.float64, np.float32)]
    assert 0.5 < floors[1] / floors[0] / 2**29 < 2


def test_the_fingerprint_names_the_examples(layer, rng):
    x = rng.standard_normal((5, 4, 4))
    held = Batch(x, layer(x))
    assert held.fingerprint() == Batch(x.copy(), layer(x)).fingerprint()
    assert held.fingerprint() != held.first(4).fingerprint()
