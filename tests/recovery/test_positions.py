"""Layers with positions: recovered and certified as what they are, never certified as what they are not."""

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
    with pytest.raises(ValueError, match="num_heads: must be given with positions='rotary'"):
        recover(x, x, positions="rotary", causal=True)
    with pytest.raises(ValueError, match="num_heads: must leave heads of an even width"):
        recover(x, x, positions="rotary", causal=True, num_heads=2)
    with pytest.raises(ValueError, match="positions: cannot go with start"):
        recover(x, x, positions="relative", method="wide")


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
