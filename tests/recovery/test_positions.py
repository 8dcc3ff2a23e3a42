"""Data of layers with positions, given as plain attention: never certified, and the cause is named."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, distance, recover
from attnlearn.scores import Offsets, Relative, Rotary, Visible, frequencies

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
    solution = recover(x, layer(x), causal=causal, raise_on_failure=False)
    assert not solution.certified
    assert solution.outcome is Outcome.NOT_ATTENTION
    assert solution.stats["diagnosis"]["cause"] == cause


@pytest.mark.parametrize("kind", ["rotary", "table"])
@pytest.mark.parametrize("visible", [Visible(True), Visible(True, 4)], ids=["causal", "window"])
def test_a_given_kind_is_fitted_and_only_its_function_is_claimed(kind, visible, seed, rng):
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=True)
    layer = teachers(base, rng)[kind].replace(causal=visible)
    positions = layer.form.rotation if kind == "rotary" else layer.form.offsets
    x = rng.standard_normal((1500, K, D))
    options = {"num_heads": M, "causal": visible, "seed": seed, "raise_on_failure": False}
    solution = recover(x, layer(x), positions=positions, **options)
    offsets = range(1 - (visible.window or K), 1)
    assert distance(solution.layer, layer, offsets=offsets).max < 1e-6
    assert solution.certificate.claim("C1").established
    assert not solution.certified
    assert solution.outcome is Outcome.NOT_ESTABLISHED
    assert solution.to_json()["certified"] is False


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
    with pytest.raises(ValueError, match="positions: must be None, 'none', or a Rotation or Offsets"):
        recover(x, x, positions="rotary")
    with pytest.raises(ValueError, match="num_heads: must be given with positions"):
        recover(x, x, positions=frequencies(WIDTH), causal=True)
    with pytest.raises(ValueError, match="causal: must be given with positions"):
        recover(x, x, positions=frequencies(WIDTH), num_heads=2)


def test_a_target_that_is_met_is_success_and_a_checkpoint_is_taken(seed, rng, tmp_path):
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=True)
    layer = teachers(base, rng)["table"]
    x = rng.standard_normal((1500, K, D))
    options = {"num_heads": M, "causal": True, "seed": seed, "target": 1e-3, "checkpoint": tmp_path}
    for _ in range(2):
        solution = recover(x, layer(x), positions=layer.form.offsets, **options)
        assert solution.outcome is Outcome.ON_TARGET
        assert solution.achieved
        assert not solution.certified
        assert [phase.name for phase in solution.phases] == ["fits with positions", "certify"]
