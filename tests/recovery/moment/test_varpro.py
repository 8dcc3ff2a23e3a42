"""Variable projection: one optimum from random starts, and the derivative of what is left."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, recover
from attnlearn.recovery.moment._span import span_models
from attnlearn.recovery.moment._varpro import random_start
from tests.problems import HOSTILE
from tests.recovery._problems import moment, problem, signals, tokens


def model_of(whole, heads, rng, seed=0):
    shown = moment(whole, seed)
    bases = shown.query_basis[:heads], shown.value_basis[:heads]
    return span_models(whole, signals(whole, seed), *bases, rng)[0]


def test_random_starts_reach_one_optimum(seed, rng):
    layer = AttentionLayer.random(4, 16, rank=6, seed=seed)
    model = model_of(problem(layer, tokens(rng, "normal", 6000, 6, 16)), 4, rng, seed)
    for rows in (model, model.thinned(1 / 3)):
        shares = sorted(rows.descend(random_start(rng, 4, model.spread))[1].share for _ in range(5))
        assert shares[2] < 1.05 * shares[0]


def test_curvature_holds_the_derivative_of_the_projected_residual(rng):
    layer = AttentionLayer.random(2, 8, seed=0)
    model = model_of(problem(layer, tokens(rng, "normal", 3000, 5, 8)), 2, rng)
    a = random_start(rng, 2, model.spread)
    fit = model.solve(a)
    gauss, gradient = model._curvature(fit)
    assert np.linalg.eigvalsh(gauss).min() > -1e-4 * np.abs(gauss).max()
    gradient = -2 * gradient.reshape(a.shape) / model.size
    step = 1e-2 / model.spread.max()
    for place in np.ndindex(*a.shape):
        moved = np.zeros_like(a)
        moved[place] = step
        slope = (model.solve(a + moved).share - model.solve(a - moved).share) / (2 * step)
        assert slope == pytest.approx(
            float(gradient[place]), rel=0.05, abs=0.02 * float(np.abs(gradient).max())
        )


@pytest.mark.parametrize("number", [109, 154])
def test_rows_that_nuisance_explains_altogether_are_too_few(number: int) -> None:
    """What is left of the columns is rounding of either sign, which must not end in a singular matrix."""
    few = HOSTILE["too few"](np.random.default_rng([number, 77]))
    solution = recover(few.x, few.y, raise_on_failure=False, **few.options)
    assert solution.outcome is Outcome.TOO_FEW_EXAMPLES
