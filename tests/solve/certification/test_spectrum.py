"""The smallest eigenvalue: written out it is exact, by Lanczos it is guaranteed from below."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import on_threads
from attnlearn.solve.certification._point import prepare
from attnlearn.solve.certification._spectrum import _guaranteed, dense_spectrum, lanczos_spectrum


@pytest.mark.parametrize("rank", [None, 2])
def test_lanczos_guarantees_no_more_than_there_is(rng, seed, rank):
    layer, x = AttentionLayer.random(2, 4, rank=rank, seed=seed), rng.standard_normal((200, 5, 4))
    with on_threads():
        double, single = (
            prepare(layer, x, None, rank, False, dtype=dtype) for dtype in (np.float64, np.float32)
        )
        exact = dense_spectrum(double, None)
        found = lanczos_spectrum(single, seed, 1e-6, more=False, on_step=None)
    assert 0 < found.lower <= exact.estimate
    assert found.lower >= calibration.ENOUGH_SHARE * found.estimate
    np.testing.assert_allclose(found.estimate, exact.estimate, rtol=1e-2)


def test_a_guarantee_takes_steps():
    exponent = np.log(1e6)
    values = [_guaranteed(0.1, 1.0, exponent, steps) for steps in (5, 20, 100, 10_000)]
    assert values[0] == 0
    assert values == sorted(values)
    assert values[-1] == pytest.approx(0.1, rel=1e-2)


def test_few_steps_with_more_examples_at_hand_give_up(rng, seed, monkeypatch):
    layer, x = AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((200, 5, 4))
    monkeypatch.setattr(calibration, "MANY_PRODUCTS", 1)
    monkeypatch.setattr(calibration, "INNER_MOST", 1)
    with on_threads():
        point = prepare(layer, x, None, None, False)
        assert lanczos_spectrum(point, seed, 1e-6, more=True, on_step=None) is None
        assert lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None) is not None


def test_a_hurried_run_gives_up_where_it_would_take_many_steps_and_guarantees_nothing(rng, seed, monkeypatch):
    layer, x = AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((200, 5, 4))
    with on_threads():
        point = prepare(layer, x, None, None, False)
        patient, easy = (
            lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None, hurried=hurried)
            for hurried in (False, True)
        )
        assert easy == patient  # few steps are enough, so there is nothing to give up
        monkeypatch.setattr(calibration, "MANY_PRODUCTS", 1)
        monkeypatch.setattr(calibration, "INNER_MOST", 1)
        found = lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None, hurried=True)
        more = lanczos_spectrum(point, seed, 1e-6, more=True, on_step=None, hurried=True)
        whole = lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None)
    assert found.lower == 0 < found.estimate
    assert found.steps == calibration.LANCZOS_BLOCK < whole.steps
    assert whole == patient
    assert more is None  # further examples come first
