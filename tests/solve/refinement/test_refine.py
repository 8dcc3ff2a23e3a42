"""Refine: recovery from perturbed starts, the stopping rule, and what it does with bad starts and data."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._linearize import linearize
from attnlearn.solve.refinement import RefineConfig, _descent
from attnlearn.solve.refinement._refine import refine


def perturbed(layer: AttentionLayer, size: float, rng: np.random.Generator) -> AttentionLayer:
    """Every Theta_i, c_i and W_i moved by `size` of its own norm in a random direction."""

    def move(array: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal(array.shape)
        axes = tuple(range(1, array.ndim))
        scale = np.linalg.norm(array, axis=axes, keepdims=True) / np.linalg.norm(
            noise, axis=axes, keepdims=True
        )
        return (array + size * scale * noise).astype(layer.dtype)

    return layer.replace(theta=move(layer.theta), query_bias=move(layer.query_bias), w=move(layer.w))


def gaussian(rng, layer, n, k):
    return rng.standard_normal((n, k, layer.dim))


# Shapes are shared between cases, so that few of them are compiled.
CASES = {
    "whole": {"layer": {}, "tokens": gaussian},
    "bias": {"layer": {"bias": True}, "tokens": gaussian},
    "boolean": {"layer": {}, "tokens": lambda *a: np.sign(gaussian(*a))},
    "causal": {"layer": {"bias": True, "causal": True}, "tokens": gaussian},
    "rank": {"layer": {"rank": 2}, "tokens": gaussian, "rank": 2},
    "skewed tokens": {
        "layer": {"rank": 2, "bias": True},
        "tokens": lambda *a: gaussian(*a) * np.geomspace(1.5, 0.05, 6) + 0.5,
        "rank": 2,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_recovers_to_rounding_from_twenty_per_cent(rng, seed, name):
    case = CASES[name]
    layer = AttentionLayer.random(2, 6, **case["layer"], seed=seed)
    x = case["tokens"](rng, layer, 300, 6)
    found = refine(perturbed(layer, 0.2, rng), x, layer(x), rank=case.get("rank"))
    assert found.stop == "floor"
    assert found.residual < 1e-11
    apart = distance(found.layer, layer)
    assert max(apart.theta, apart.w) < 1e-9
    assert found.layer.causal == layer.causal


def test_examples_that_fit_into_one_chunk(rng, seed):
    truth = AttentionLayer.random(6, 16, scale=2.0, seed=seed)
    x = rng.standard_normal((300, 3, 16))
    refined = refine(truth.replace(theta=1.001 * truth.theta), x, truth(x))
    assert refined.stop == "floor"
    assert distance(refined.layer, truth).max < 1e-11


def test_padding_is_ignored_and_outputs_may_have_another_dimension(rng, seed):
    # Three tokens at least: with two, heads and their mirror images are the same function.
    square = AttentionLayer.random(2, 6, bias=True, seed=seed)
    layer = AttentionLayer(square.theta, square.w[:, :, :4], square.query_bias, square.output_bias[:4])
    x = rng.standard_normal((300, 4, 6))
    mask = np.arange(4) < rng.integers(3, 5, size=(300, 1))
    y = layer(x, mask)
    x[~mask], y[~mask] = 1e3, -1e3
    found = refine(perturbed(layer, 0.2, rng), x, y, mask=mask)
    assert found.stop == "floor"
    assert distance(found.layer, layer).max < 1e-9


def test_tokens_in_an_affine_subspace_give_the_same_function(rng, seed):
    layer = AttentionLayer.random(2, 6, bias=True, seed=seed)
    span = rng.standard_normal((4, 6)) / 2
    x = rng.standard_normal((300, 6, 4)) @ span + 0.3
    found = refine(perturbed(layer, 0.1, rng), x, layer(x))
    fresh = rng.standard_normal((20, 6, 4)) @ span + 0.3
    assert found.stop == "floor"
    np.testing.assert_allclose(found.layer(fresh), layer(fresh), atol=1e-9)


def test_noise_stops_at_its_floor_with_all_examples(rng, seed):
    layer = AttentionLayer.random(2, 6, seed=seed)
    x = rng.standard_normal((1500, 6, 6))  # more than refine starts with
    clean = layer(x)
    noise = 0.05 * rng.standard_normal(clean.shape)
    found = refine(perturbed(layer, 0.2, rng), x, clean + noise)
    y = (clean + noise).reshape(-1, 6)
    level = np.linalg.norm(noise) / np.linalg.norm(y - y.mean(axis=0))
    unknowns = 2 * (36 + 6) + (2 * 6 + 1) * 6
    assert found.stop == "noise"
    assert found.examples == 1500
    # Least squares takes its share of the noise, unknowns / equations, and no more.
    np.testing.assert_allclose(found.residual, level * np.sqrt(1 - unknowns / noise.size), rtol=2e-3)
    few = refine(perturbed(layer, 0.2, rng), x[:300], (clean + noise)[:300])
    assert distance(found.layer, layer).theta < 0.7 * distance(few.layer, layer).theta


def test_float32_stays_float32(rng, seed):
    layer = AttentionLayer.random(2, 6, seed=seed).astype(np.float32)
    x = rng.standard_normal((300, 6, 6)).astype(np.float32)
    found = refine(perturbed(layer, 0.2, rng), x, layer(x))
    assert found.layer.dtype == np.float32
    assert {step["precision"] for step in found.steps} == {"float32"}
    assert found.stop == "floor"
    assert distance(found.layer, layer).theta < 1e-4


def test_evidence_and_limits(rng, seed):
    layer = AttentionLayer.random(2, 6, seed=seed)
    x = rng.standard_normal((300, 6, 6))
    seen = []
    found = refine(
        perturbed(layer, 0.2, rng), x, layer(x), config=RefineConfig(max_steps=2), on_step=seen.append
    )
    assert found.stop == "max_steps"
    assert seen == found.steps
    assert [step["step"] for step in seen] == [0, 1]
    assert all({"residual", "inner", "damping", "precision", "seconds"} <= step.keys() for step in seen)
    coarse = refine(perturbed(layer, 0.2, rng), x, layer(x), config=RefineConfig(tolerance=1e-3))
    assert coarse.stop == "target"
    assert coarse.residual <= 1e-3


def test_accepted_steps_never_increase_the_residual_even_from_a_wrong_start(rng, seed):
    layer = AttentionLayer.random(2, 6, scale=6.0, seed=seed)
    x = rng.standard_normal((300, 6, 6))
    wrong = AttentionLayer.random(2, 6, scale=6.0, seed=seed + 1)
    found = refine(wrong, x, layer(x), config=RefineConfig(max_steps=15))
    assert found.stop in ("floor", "noise", "stalled", "max_steps")
    for precision_, examples in {(s["precision"], s["examples"]) for s in found.steps}:
        accepted = [
            s["residual"]
            for s in found.steps
            if s["accepted"] and (s["precision"], s["examples"]) == (precision_, examples)
        ]
        assert accepted == sorted(accepted, reverse=True)
    assert np.isfinite(found.residual)


def test_the_callback_can_interrupt(rng):
    layer = AttentionLayer.random(2, 6)
    x = rng.standard_normal((300, 6, 6))

    def interrupt(info):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        refine(perturbed(layer, 0.2, rng), x, layer(x), on_step=interrupt)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((4, 3, 5))}, "x: must have shape"),
        ({"y": np.zeros((4, 3, 7))}, "y: must have 4 outputs"),
        ({"y": np.full((4, 3, 4), np.nan)}, "y: must be finite"),
        ({"rank": 0}, "rank: must be at least 1"),
        ({"mask": np.ones((4, 2), bool)}, "mask: must have shape"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"x": np.zeros((4, 3, 4)), "y": np.zeros((4, 3, 4))} | change
    with pytest.raises(ValueError, match=message):
        refine(AttentionLayer.random(2, 4), **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [4, None])
def test_d32_reaches_1e_12_with_four_equations_per_unknown(rng, seed, rank):
    layer = AttentionLayer.random(8, 32, rank=4, seed=seed)
    x = rng.standard_normal((300, 8, 32))
    found = refine(perturbed(layer, 0.2, rng), x, layer(x), rank=rank)
    assert found.examples < 300
    apart = distance(found.layer, layer)
    assert max(apart.theta, apart.w) < 1e-12


def test_a_rank_too_large_is_lowered_beside_noise(rng, seed):
    truth = AttentionLayer.random(3, 16, rank=3, seed=seed)
    x = rng.standard_normal((600, 6, 16))
    y = truth(x)
    y = y + 1e-3 * y.std() * rng.standard_normal(y.shape)
    refined = refine(truth, x, y, rank=4)
    assert refined.stop == "noise"
    assert refined.rank == 3
    assert len(refined.steps) < 20


def test_a_rehearsal_on_few_outputs_ends_on_all_of_them(rng, seed, monkeypatch):
    layer = AttentionLayer.random(2, 8, rank=2, bias=True, seed=seed)
    wide = AttentionLayer(layer.theta, rng.standard_normal((2, 8, 40)), layer.query_bias, np.ones(40))
    monkeypatch.setattr(calibration, "PIECE", 6)
    seen = []
    monkeypatch.setattr(
        _descent, "linearize", lambda *given: seen.append(given[1].shape[1]) or linearize(*given)
    )
    x = gaussian(rng, wide, 300, 4)
    found = refine(perturbed(wide, 0.2, rng), x, wide(x), rank=2, config=RefineConfig(combine_first=True))
    assert found.stop == "floor"
    assert distance(found.layer, wide).max < 1e-9
    assert set(seen) <= {6, 40}
    assert seen[0] == 6


def test_a_rehearsal_does_not_cost_precision_beside_noise(rng, seed, monkeypatch):
    layer = AttentionLayer.random(2, 6, seed=seed)
    wide = AttentionLayer(layer.theta, rng.standard_normal((2, 6, 40)), layer.query_bias, np.ones(40))
    monkeypatch.setattr(calibration, "PIECE", 6)
    x = gaussian(rng, wide, 400, 4)
    y = wide(x)
    y += 1e-3 * y.std() * rng.standard_normal(y.shape)
    fits = [
        refine(wide, x, y, config=RefineConfig(combine_first=combine_first))
        for combine_first in (False, True)
    ]
    assert [fit.stop for fit in fits] == ["noise", "noise"]
    assert distance(*(fit.layer for fit in fits)).max < 0.1 * distance(fits[0].layer, wide).max


def test_noise_asks_for_more_examples_only_where_it_is_averaged(rng, seed):
    layer = AttentionLayer.random(2, 6, seed=seed)
    x = gaussian(rng, layer, 4_000, 6)
    y = layer(x)
    y += 1e-2 * y.std() * rng.standard_normal(y.shape)
    few, every = (refine(layer, x, y, config=RefineConfig(average=average)) for average in (False, True))
    assert (few.stop, every.stop) == ("noise", "noise")
    assert few.examples < every.examples == 4_000


def test_a_rank_that_may_not_be_lowered_is_kept(rng, seed):
    layer = AttentionLayer.random(2, 8, rank=2, seed=seed)
    x = gaussian(rng, layer, 600, 5)
    ranks = [
        refine(layer, x, layer(x), rank=4, config=RefineConfig(lower=lower)).rank for lower in (False, True)
    ]
    assert ranks[0] == 4
