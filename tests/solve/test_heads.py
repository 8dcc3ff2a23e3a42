"""How far heads are apart, and what each contributes that the others cannot."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._summary import effective_ranks
from attnlearn.scores import Bilinear
from attnlearn.solve._batch import Batch
from attnlearn.solve._heads import (
    BALANCE,
    CANCELLED,
    COHERENT,
    RANK_ONE,
    balance,
    cancellation,
    drop_effects,
    head_separation,
    head_visibility,
    largest_cosine,
    visibility,
)
from attnlearn.solve._regress import regress


def held_of(x: np.ndarray, mask: np.ndarray | None = None) -> Batch:
    return Batch(x, np.zeros((*x.shape[:2], 1)), mask)


def test_separation_is_the_smallest_relative_distance():
    theta = np.zeros((3, 2, 2))
    theta[:, 0, 0] = [1.0, 1.5, 4.0]
    assert head_separation(AttentionLayer(theta, np.ones((3, 2, 2)))) == pytest.approx(0.5 / 1.5)
    assert head_separation(AttentionLayer(theta[:1], np.ones((1, 2, 2)))) == 1.0


def test_the_query_bias_separates_heads():
    query_bias = np.array([[0.0, 0.0], [0.0, 1.0]])
    layer = AttentionLayer(np.zeros((2, 2, 2)), np.ones((2, 2, 2)), query_bias)
    assert head_separation(layer) == 1.0
    assert head_separation(layer.replace(query_bias=np.zeros((2, 2)))) == 0.0


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_separation_does_not_overflow_in_float32(size):
    layer = AttentionLayer.random(num_heads=3, dim=4, bias=True, seed=0)
    wanted = head_separation(layer)
    scaled = layer.replace(theta=size * layer.theta, query_bias=size * layer.query_bias).astype(np.float32)
    assert head_separation(scaled) == pytest.approx(wanted, rel=1e-5)


def test_a_distance_that_cannot_be_computed_is_nan():
    """Layers refuse NaN themselves; one that holds it all the same passes no check."""

    class Broken:
        form, num_heads = Bilinear.whole(np.ones((3, 2, 2)), np.zeros((3, 2))), 3

    Broken.form.a[1, 0, 0] = np.nan
    assert np.isnan(head_separation(Broken()))
    Broken.form.a[1, 0, 0], Broken.form.c[0, 0] = 1.0, np.nan
    assert np.isnan(head_separation(Broken()))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_drop_effects_equal_a_refit(causal, padded, rng, seed):
    layer = AttentionLayer.random(num_heads=3, dim=4, bias=True, seed=seed).replace(causal=causal)
    x = rng.standard_normal((150, 4, 4)) @ rng.standard_normal((4, 4)) + 1.0
    mask = np.arange(4) < rng.integers(2, 5, 150)[:, None] if padded else None
    sides = [(x[side], None if mask is None else mask[side]) for side in (slice(100), slice(100, None))]
    (fit_x, fit_mask), (own_x, own_mask) = sides
    found = drop_effects(layer, held_of(*sides[0]), held_of(*sides[1]), scale=2.0)
    assert found.shape == (3, 50)
    for head in range(3):
        kept = [other for other in range(3) if other != head]
        theta, query_bias = layer.theta[kept], layer.query_bias[kept]
        w, b, _ = regress(theta, query_bias, fit_x, layer(fit_x, fit_mask), mask=fit_mask, causal=causal)
        change = AttentionLayer(theta, w, query_bias, b, causal=causal)(own_x, own_mask) - layer(
            own_x, own_mask
        )
        if own_mask is not None:
            change = change * own_mask[..., None]
        np.testing.assert_allclose(found[head], np.linalg.norm(change, axis=(1, 2)) / 2.0, rtol=1e-6)


def test_a_head_that_stands_twice_has_no_effect(rng, seed):
    layer = AttentionLayer.random(num_heads=3, dim=4, seed=seed)
    doubled = AttentionLayer(layer.theta[[0, 1, 0]], layer.w, layer.query_bias[[0, 1, 0]])
    x = held_of(rng.standard_normal((120, 4, 4)))
    effects = drop_effects(doubled, x, x, scale=1.0).max(axis=1)
    assert effects[[0, 2]].max() < 1e-5 * effects[1]


def test_a_head_without_output_has_no_effect(rng, seed):
    layer = AttentionLayer.random(num_heads=2, dim=4, seed=seed)
    silent = layer.replace(w=layer.w * np.array([1.0, 1e-9])[:, None, None])
    x = held_of(rng.standard_normal((120, 4, 4)))
    effects = drop_effects(silent, x, x, scale=1.0).max(axis=1)
    assert effects[1] < 1e-6 < 1e-3 < effects[0]


def test_visibility_is_what_a_fraction_of_the_sequences_reaches(rng):
    effects = rng.random((3, 200))
    for fraction in (0.005, 0.1, 0.5, 0.93, 1.0):
        reached = visibility(effects, fraction)
        assert ((effects >= reached[:, None]).mean(axis=1) >= fraction).all()
        above = np.nextafter(reached, 2)[:, None]
        assert ((effects >= above).mean(axis=1) < fraction).all()


@pytest.mark.parametrize(
    ("fraction", "wanted"), [(0.0, 3.0), (0.25, 3.0), (0.26, 2.0), (1.0, 0.0), (2.0, 0.0)]
)
def test_visibility_at_the_ends(fraction, wanted):
    assert visibility(np.array([[3.0, 0.0, 2.0, 1.0]]), fraction).tolist() == [wanted]


def test_the_output_of_each_head_alone(rng, seed):
    layer = AttentionLayer.random(num_heads=2, dim=3, seed=seed)
    x = rng.standard_normal((50, 4, 3))
    louder = layer.replace(w=layer.w * np.array([1.0, 10.0])[:, None, None])
    once, again = (head_visibility(each, held_of(x), 1.0) for each in (layer, louder))
    np.testing.assert_allclose(again / once, [1.0, 10.0])
    alone = AttentionLayer(layer.theta[:1], layer.w[:1])(x)
    assert once[0] == pytest.approx(np.sqrt(np.mean(np.sum(alone**2, axis=(1, 2)))))


def test_a_head_that_others_stand_in_for_has_no_effect_beyond_rounding(rng, seed):
    """The ridge of the refit alone would leave a few 1e-13, more than a hundred times the rounding of the outputs."""
    layer = AttentionLayer.random(2, 4, seed=seed)
    twice = AttentionLayer(
        np.concatenate([layer.theta, layer.theta[:1]]), np.concatenate([layer.w, layer.w[:1]])
    )
    x = rng.standard_normal((300, 4, 4))
    effects = drop_effects(twice, Batch(x, twice(x)), Batch(x, twice(x)), 1.0).max(axis=1)
    assert effects[[0, 2]].max() < 1e-14
    assert effects[1] > 0.1


def test_cosines_balance_and_cancellation(rng):
    one = rng.standard_normal((5, 4))
    alike = np.stack([one, -2 * one, rng.standard_normal((5, 4))])
    assert largest_cosine(alike) == pytest.approx(1.0)
    assert largest_cosine(alike[:1]) == 0.0
    assert balance(alike[:2]) == pytest.approx(2.0)
    assert balance(np.stack([one, np.zeros_like(one)])) == np.inf
    assert cancellation(np.stack([one, -one])) < 1e-12
    assert cancellation(np.stack([one, one])) > 1e-3


def test_random_layers_break_no_condition_as_a_rule():
    broken = np.zeros(4)
    for seed in range(100):
        layer = AttentionLayer.random(2, 8, seed=seed)
        ranks = effective_ranks(np.linalg.svd(layer.theta, compute_uv=False))
        broken += [
            balance(layer.theta) > BALANCE,
            largest_cosine(layer.theta) > COHERENT,
            cancellation(layer.w) < CANCELLED,
            ranks.min() < RANK_ONE,
        ]
    assert (broken <= 3).all()
