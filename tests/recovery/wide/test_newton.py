"""Gauss-Newton on a student: the truth from a fair start, padding and causal masks included, and where it ends."""

from __future__ import annotations

import time

import numpy as np
import pytest

from attnlearn.recovery.wide._blocks import Blocks
from attnlearn.recovery.wide._newton import Limits, eliminate, newton, solve
from attnlearn.recovery.wide._tangent import Tangent
from tests.recovery.wide._students import away, examples, layer


def test_a_step_promises_what_it_keeps_where_the_model_is_linear(rng):
    truth = layer(rng)
    chunks = examples(truth, rng, padded=False, causal=False)
    before = eliminate(away(truth, 1e-3, rng), chunks, causal=False)
    at = Tangent.at(before.student, before.factor, chunks, causal=False)
    step, promised = solve(at, Blocks.of(at), at.slope(), 1e-3, Limits(1))
    kept = before.cost - eliminate(step.added_to(before.student), chunks, causal=False).cost
    assert promised == pytest.approx(kept, rel=0.05)


@pytest.mark.parametrize(("padded", "causal"), [(False, False), (True, False), (False, True)])
def test_it_runs_into_the_truth(rng, padded, causal):
    truth = layer(rng)
    chunks = examples(truth, rng, padded=padded, causal=causal)
    found = newton(away(truth, 0.2, rng), chunks, causal, Limits(40, enough=1e-9))
    assert found.residual < 1e-8
    assert list(found.residuals) == sorted(found.residuals, reverse=True)
    theta = [np.sort(np.linalg.norm(some.scores.theta(), axis=(1, 2))) for some in (found.student, truth)]
    np.testing.assert_allclose(*theta, rtol=1e-5)


def test_it_ends_where_it_is_told_to(rng):
    truth = layer(rng)
    chunks, start = examples(truth, rng, padded=False, causal=False), away(truth, 0.2, rng)
    seen: list[float] = []
    assert len(newton(start, chunks, False, Limits(2), seen.append).residuals) == len(seen) == 2
    rough = newton(start, chunks, False, Limits(40, enough=0.01))
    assert rough.residuals[-1] <= 0.01 < rough.residuals[-2]
    assert newton(start, chunks, False, Limits(40, deadline=time.monotonic() - 1)).residuals == ()
