"""What lies near the edge of what outputs can show: a head almost equal to another, a head almost silent."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, distance, recover
from tests.problems import broken_claims

DIM, TOKENS, NUM = 6, 4, 3000


def with_close_head(base: AttentionLayer, size: float, rng: np.random.Generator) -> AttentionLayer:
    away = size * rng.standard_normal((1, DIM, DIM))
    return AttentionLayer(
        np.concatenate([base.theta, base.theta[:1] + away]),
        np.concatenate([base.w, rng.standard_normal((1, DIM, DIM))]),
        np.concatenate([base.query_bias, base.query_bias[:1]]),
        base.output_bias,
    )


def with_faint_head(base: AttentionLayer, size: float, rng: np.random.Generator) -> AttentionLayer:
    return base.replace(w=np.concatenate([size * base.w[:1], base.w[1:]]))


@pytest.mark.parametrize(
    ("degenerate", "size"),
    [
        pytest.param(with_close_head, 1e-6, marks=pytest.mark.slow),
        (with_close_head, 1e-12),
        (with_faint_head, 1e-6),
        (with_faint_head, 1e-12),
    ],
)
def test_no_claim_is_broken_by_a_head_that_can_hardly_be_seen(degenerate, size, seed) -> None:
    rng = np.random.default_rng([seed, 8])
    truth = degenerate(AttentionLayer.random(2, DIM, scale=2.5, seed=seed), size, rng)
    x, fresh = rng.standard_normal((NUM, TOKENS, DIM)), rng.standard_normal((20_000, TOKENS, DIM))
    solution = recover(x, truth(x), raise_on_failure=False)
    assert solution.layer is not None
    assert broken_claims(solution.certificate, solution.layer, truth, (fresh, truth(fresh))) == []


@pytest.mark.slow
def test_heads_that_nearly_coincide_are_told_apart_or_called_so_and_not_noise(seed) -> None:
    rng = np.random.default_rng([seed, 8])
    truth = with_close_head(AttentionLayer.random(1, DIM, scale=2.5, seed=seed), 0.01, rng)
    x = rng.standard_normal((NUM, TOKENS, DIM))
    solution = recover(x, truth(x), raise_on_failure=False)
    if solution.outcome is Outcome.RECOVERED:
        assert solution.certified
        assert solution.layer.num_heads == truth.num_heads
        assert distance(solution.layer, truth).max < 1e-11
    else:
        assert solution.outcome is Outcome.HEADS_INDISTINGUISHABLE
        assert not solution.certified
    fresh = rng.standard_normal((20_000, TOKENS, DIM))
    assert broken_claims(solution.certificate, solution.layer, truth, (fresh, truth(fresh))) == []


@pytest.mark.slow
def test_a_tail_of_small_singular_values_belongs_to_the_head(seed) -> None:
    rng = np.random.default_rng([seed, 9])
    low = AttentionLayer.random(2, DIM, rank=2, scale=2.5, seed=seed)
    truth = low.replace(theta=low.theta + 1e-9 * rng.standard_normal(low.theta.shape))
    x = rng.standard_normal((NUM, TOKENS, DIM))
    solution = recover(x, truth(x))
    assert np.abs(solution.layer.canonical().theta - truth.canonical().theta).max() < 1e-12


@pytest.mark.parametrize("scale", [0.05, pytest.param(0.01, marks=pytest.mark.slow)])
def test_weak_attention_whose_heads_the_first_order_does_not_tell_apart(scale: float, seed: int, rng) -> None:
    """Mixtures of the heads have the same first order: the moment cannot unmix them, and float32 does not see the second."""
    truth, x = AttentionLayer.random(3, 8, scale=scale, seed=seed), rng.standard_normal((4_000, 5, 8))
    found = recover(x, truth(x), raise_on_failure=False)
    assert found.outcome.name in ("RECOVERED", "NOT_ESTABLISHED")
    assert distance(found.layer, truth).max < 1e-6


@pytest.mark.slow
def test_heads_a_hundredth_apart_are_told_apart(seed: int, rng) -> None:
    layer = AttentionLayer.random(2, 8, seed=seed)
    truth = layer.replace(theta=np.stack([layer.theta[0], layer.theta[0] + 0.01 * layer.theta[1]]))
    x = rng.standard_normal((4_000, 5, 8))
    found = recover(x, truth(x))
    assert found.certified
    assert distance(found.layer, truth).max < 1e-8
