"""The compiled loop records what its names say: each entry against the loss and gradient at the same weights."""

import numpy as np
import pytest

from attnlearn._precision import precision
from attnlearn.training import AttentionModel, loss_and_gradient
from attnlearn.training._compare import to_device
from attnlearn.training._descent import OPTIMIZERS, Rates, advance, start
from attnlearn.training._loss import cut
from attnlearn.training._model import Weights, equal_scales

HEADS, STEPS = 3, 4


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_evidence_of_each_step_is_taken_at_its_own_weights(optimizer, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((6, 4, 5)), np.where(rng.random(6) < 0.5, -1.0, 1.0)
    weights, star = (
        Weights(rng.standard_normal((HEADS, 4, 5)), rng.standard_normal((HEADS, 5, 5))) for _ in range(2)
    )
    model = AttentionModel()
    with precision(np.float64):
        chunks, scales = to_device(cut(x, y, HEADS)), equal_scales(HEADS, np.float64)
        rates = Rates(*(np.asarray(value, np.float64) for value in (0.3, 4.0, HEADS)))
        for _ in range(STEPS):
            loss, gradient = loss_and_gradient(weights.u, weights.w, x, y)
            state = start(optimizer, weights, np.zeros(()))
            state, trace = advance(model, optimizer, False, state, chunks, scales, star, rates, 1)
            inner = sum(np.sum(g * (a - b)) for g, a, b in zip(gradient, weights, star))
            assert float(trace.loss[0]) == pytest.approx(loss, rel=1e-12)
            assert float(trace.gradient_sq[0]) == pytest.approx(
                sum(np.sum(g**2) for g in gradient), rel=1e-12
            )
            assert float(trace.inner[0]) == pytest.approx(inner, rel=1e-10, abs=1e-12)
            assert np.isnan(trace.inner[1])
            weights = Weights(*map(np.asarray, state.weights))
