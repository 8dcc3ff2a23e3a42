"""Chosen queries near the edge of what answers can show: no claim is broken, and no rounding hides a head."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, Status
from attnlearn.extraction import ExtractConfig, extract
from tests.problems import broken_claims
from tests.recovery.test_resolution import DIM, with_close_head, with_faint_head

ROUNDINGS = {
    "float64": lambda y: y,
    "6 decimals": lambda y: np.round(y, 6),
    "noise of 1e-9": lambda y: y + 1e-9 * np.random.default_rng(0).standard_normal(y.shape),
}


@pytest.mark.parametrize("degenerate", [with_close_head, with_faint_head])
def test_a_head_of_a_millionth_is_missed_in_float32_answers(degenerate, seed) -> None:
    """It is not found, but the fit leaves more than rounding, and nothing is claimed about heads."""
    rng = np.random.default_rng([seed, 8])
    truth = degenerate(AttentionLayer.random(2, DIM, scale=2.5, seed=seed + 2), 1e-6, rng).astype(np.float32)
    solution = extract(truth, DIM, seed=seed, progress=False, raise_on_failure=False)
    assert solution.layer.num_heads == truth.num_heads - 1
    assert solution.certificate.check("C2.fit").status is Status.FAILS
    assert not solution.certificate.claim("C2").established
    assert not solution.certificate.claim("C3").established
    assert solution.outcome is Outcome.NOT_ESTABLISHED


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    "size", [pytest.param(1e-3, marks=pytest.mark.slow), 1e-7, pytest.param(1e-12, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("degenerate", [with_close_head, with_faint_head])
def test_no_claim_is_broken_by_a_head_that_can_hardly_be_seen(degenerate, size, rounding, seed) -> None:
    rng = np.random.default_rng([seed, 8])
    truth = degenerate(AttentionLayer.random(2, DIM, scale=2.5, seed=seed), size, rng)
    config = ExtractConfig(certify_sequences=300)
    answer = ROUNDINGS[rounding]
    solution = extract(
        lambda x: answer(truth(x)), DIM, seed=seed, config=config, progress=False, raise_on_failure=False
    )
    assert solution.outcome is not Outcome.NOT_ATTENTION
    assert not solution.certified or rounding == "float64"
    if solution.layer is not None:
        fresh = solution.stats["token_scale"] * rng.standard_normal((20_000, 3, DIM))
        found = solution.layer.astype(np.float64)
        assert broken_claims(solution.certificate, found, truth, (fresh, truth(fresh))) == []
