"""The derivative of a student with its outputs eliminated: that of the error, padding and causal masks included."""

from __future__ import annotations

import pytest

from attnlearn.recovery.wide._newton import eliminate
from tests.recovery.wide._students import away, examples, layer, tangent


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_the_slope_is_that_of_the_eliminated_error(rng, padded, causal):
    truth = layer(rng)
    chunks = examples(truth, rng, padded=padded, causal=causal)
    at = tangent(away(truth, 0.3, rng), chunks, causal)
    slope = at.slope()
    direction = rng.standard_normal(slope.flat().size)
    costs = [
        eliminate(slope.shaped(size * direction).added_to(at.student), chunks, causal).cost
        for size in (1e-6, -1e-6)
    ]
    assert 2 * slope.flat() @ direction == pytest.approx((costs[0] - costs[1]) / 2e-6, rel=1e-4)


def test_the_matrix_is_symmetric_and_that_of_the_residual(rng):
    truth = layer(rng)
    chunks = examples(truth, rng, padded=False, causal=False)
    at = tangent(truth, chunks, causal=False)
    u, v = rng.standard_normal((2, at.slope().flat().size))
    shaped = at.slope().shaped
    assert u @ at.product(shaped(v)).flat() == pytest.approx(v @ at.product(shaped(u)).flat(), rel=1e-9)
    # At the truth the eliminated error of a small step is that of the linear model.
    cost = eliminate(shaped(1e-5 * v).added_to(truth), chunks, causal=False).cost
    assert cost == pytest.approx(1e-10 * (v @ at.product(shaped(v)).flat()), rel=1e-2)
