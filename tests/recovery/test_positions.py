"""Layers with positions: recovered and certified as what they are, never certified as what they are not."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, distance, recover
from attnlearn.engine import Tools
from attnlearn.recovery.positions import _search
from attnlearn.scores import Offsets, Relative, Rotary, Visible, frequencies
from attnlearn.solve.refinement import refine

M, D, K, WIDTH = 2, 6, 8, 4


def teachers(base, rng):
    query, key = rng.standard_normal((2, M, D, WIDTH))
    size = np.linalg.norm(query @ np.swapaxes(key, 1, 2), axis=(1, 2))
    turned = Rotary.of_factors(query * (2 / size)[:, None, None], key, frequencies(WIDTH).rotation)
    table = Relative(base.form, rng.standard_normal((M, 2 * K - 1)), Offsets("table", reach=K - 1))
    return {
        "rotary": AttentionLayer.from_scores(turned, base.w, causal=base.causal),
        "table": AttentionLayer.from_scores(table, base.w, causal=base.causal),
        "window": base.replace(window=3),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("kind", "cause"), [("rotary", "position"), ("table", "position"), ("window", "window")]
)
def test_plain_recovery_names_what_it_lacks(kind, cause, causal, seed, rng):
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=causal)
    layer = teachers(base, rng)[kind]
    x = rng.standard_normal((4000, K, D))
    solution = recover(x, layer(x), positions="none", causal=causal, raise_on_failure=False)
    assert not solution.certified
    assert solution.outcome is Outcome.NOT_ATTENTION
    assert solution.stats["diagnosis"]["cause"] == cause


@pytest.mark.parametrize(
    ("kind", "visible"),
    [
        ("rotary", Visible(True)),
        pytest.param("rotary", Visible(True, 4), marks=pytest.mark.slow),
        ("table", Visible(True)),
    ],
)
def test_a_given_kind_is_recovered_and_certified(kind, visible, seed, rng):
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=True)
    layer = teachers(base, rng)[kind].replace(causal=visible)
    positions = layer.form.rotation if kind == "rotary" else layer.form.offsets
    x = rng.standard_normal((1500, K, D))
    options = {"num_heads": M, "causal": visible, "seed": seed, "raise_on_failure": False}
    solution = recover(x, layer(x), positions=positions, **options)
    found = distance(solution.layer, layer, offsets=visible.offsets(K))
    assert solution.certified
    assert solution.outcome is Outcome.RECOVERED
    claim = solution.certificate.claim("C3")
    assert max(found.theta, found.w) <= claim.value["weights"] < 1e-8
    assert claim.value["biases"] is None or found.query_bias <= claim.value["biases"]
    assert solution.to_json()["certified"] is True


def test_heads_and_mask_are_found(seed, rng):
    """Neither the number of heads nor the causal mask is given."""
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=True)
    layer = teachers(base, rng)["table"]
    x = rng.standard_normal((1500, K, D))
    solution = recover(x, layer(x), positions="relative", seed=seed, raise_on_failure=False)
    assert solution.certified
    assert solution.layer.num_heads == M
    assert solution.layer.causal
    assert distance(solution.layer, layer, offsets=range(1 - K, 1)).theta < 1e-8


@pytest.mark.slow
def test_a_wrong_kind_claims_no_small_error(seed, rng):
    """Rotary data fitted with other frequencies: the function error is what it is, and nothing is established."""
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=True)
    layer = teachers(base, rng)["rotary"]
    x = rng.standard_normal((600, K, D))
    wrong = frequencies(WIDTH, base=10.0).rotation
    options = {"num_heads": M, "causal": True, "time_limit": 20, "raise_on_failure": False}
    solution = recover(x, layer(x), positions=wrong, **options)
    assert not solution.certificate.claim("C1").established
    assert not solution.certified


def test_what_is_asked_for_is_checked_first(rng):
    x = rng.standard_normal((100, K, D))
    with pytest.raises(ValueError, match="positions: must be None, one of none, rotary, relative"):
        recover(x, x, positions="sinusoidal")
    with pytest.raises(ValueError, match="positions: cannot go with start"):
        recover(x, x, positions="relative", method="wide")


@pytest.mark.parametrize("kind", ["rotary", "table", "window"])
def test_what_is_not_said_is_found(kind, seed, rng):
    """Kind, frequencies, window, the number of heads and their width: the data say all of it."""
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=True)
    layer = teachers(base, rng)[kind]
    x = rng.standard_normal((4000, K, D))
    solution = recover(x, layer(x), seed=seed, raise_on_failure=False)
    assert solution.certified
    assert solution.layer.visible == layer.visible
    assert type(solution.layer.form) is type(layer.form)
    assert solution.layer.num_heads == M
    assert distance(solution.layer, layer, offsets=layer.visible.offsets(K)).theta < 1e-8


def test_a_target_that_is_met_is_success(seed, rng):
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=True)
    layer = teachers(base, rng)["table"]
    x = rng.standard_normal((1500, K, D))
    options = {"num_heads": M, "causal": True, "seed": seed, "target": 1e-3}
    solution = recover(x, layer(x), positions=layer.form.offsets, **options)
    assert solution.outcome is Outcome.ON_TARGET
    assert solution.achieved
    assert not solution.certified


def test_an_interrupted_search_goes_on_where_it_was(seed, rng, tmp_path, monkeypatch):
    """Time is up in the middle of the row: the next run takes the fits that were made, and ends as one run does."""
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=True)
    layer = teachers(base, rng)["rotary"]
    x = rng.standard_normal((1500, K, D))
    options = {"num_heads": M, "causal": True, "seed": seed, "positions": layer.form.rotation}
    straight = recover(x, layer(x), **options)
    calls = []

    def counted(*arguments, **more):
        calls.append(arguments)
        return refine(*arguments, **more)

    monkeypatch.setattr(_search, "refine", counted)
    with monkeypatch.context() as patch:
        patch.setattr(Tools, "out_of_time", property(lambda tools: len(calls) > 2))
        limits = {"time_limit": 1000.0, "raise_on_failure": False}
        stopped = recover(x, layer(x), checkpoint=tmp_path, **limits, **options)
    assert stopped.outcome is Outcome.BUDGET_SPENT
    assert stopped.layer.form.rotation == layer.form.rotation
    begun = len(calls)
    ended = recover(x, layer(x), checkpoint=tmp_path, **options)
    assert ended.certified
    assert ended.layer == straight.layer
    assert len(calls) - begun < begun + 8
