"""C2: what makes the count of heads established, and what is shown when it is not."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._certificate import Status
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, exactness_limit, example_scale, rounding_floor
from attnlearn.solve.certification._count import UNSEEN, Seen, count_claim, look_at_tokens
from attnlearn.solve.certification._parameters import LATE
from attnlearn.solve.certification._rivals import Opinion


def judged(layer: AttentionLayer, x: np.ndarray, seen: Seen, **changed):
    held = Batch(x, layer(x))
    scale = example_scale(held)
    given = {
        "eps": 1e-15,
        "floor": rounding_floor(layer, held, scale),
        "bound": 1e-10,
        "fraction": 0.1,
    } | changed
    claim, checks = count_claim(layer, held, held, scale=scale, support=None, seen=seen, **given)
    return claim, {check.code: check.status for check in checks}


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(2, 4, seed=seed)


@pytest.fixture
def x(rng):
    return rng.standard_normal((300, 4, 4))


CLEAN = Seen(None, Opinion(1, 1))


def test_a_clear_layer_on_drawn_tokens_has_its_count(layer, x):
    claim, checks = judged(layer, x, CLEAN)
    assert claim.established
    assert claim.value == 2
    assert set(checks.values()) == {Status.HOLDS}


@pytest.mark.parametrize(("changed", "code"), [
    ({"eps": 1e-6}, "C2.exact"), ({"fraction": 0.6}, "C2.evidence"), ({"bound": 1.0}, "C2.apart"),
])  # fmt: skip
def test_each_condition_is_needed(layer, x, changed, code):
    claim, checks = judged(layer, x, CLEAN, **changed)
    assert not claim.established
    assert checks[code] is Status.FAILS


def test_without_an_opinion_or_a_bound_nothing_is_established(layer, x):
    claim, checks = judged(layer, x, UNSEEN)
    assert not claim.established
    assert checks["C2.rivals"] is Status.NOT_RUN
    claim, checks = judged(layer, x, CLEAN, bound=LATE)
    assert not claim.established
    assert checks["C2.apart"] is Status.NOT_RUN


def test_heads_must_be_apart_by_the_root_of_what_counts_as_exact(layer, x):
    claim, _ = judged(layer, x, CLEAN, bound=0.0, floor=1e-7)
    wanted = (calibration.STANDS_OUT * exactness_limit(1e-7, layer.dtype)) ** 0.5
    assert claim.scope["apart"] == pytest.approx(max(wanted, calibration.APART_LEAST))


def test_a_head_that_others_stand_in_for_is_not_visible(layer, x):
    twice = AttentionLayer(
        np.concatenate([layer.theta, layer.theta[:1]]), np.concatenate([layer.w, layer.w[:1]])
    )
    _, checks = judged(twice, x, CLEAN)
    assert checks["C2.visible"] is Status.FAILS


def test_suspicious_tokens_get_a_thorough_opinion(layer, x):
    centred = x - x.mean(axis=1, keepdims=True)
    free, tied = (
        look_at_tokens(
            layer, *(Batch(side, layer(side)) for side in (tokens[:100], tokens[100:])), designed=False
        )
        for tokens in (x, centred)
    )
    assert free.opinion.tried < tied.opinion.tried
    assert free.assumes != tied.assumes
    assert look_at_tokens(layer, Batch(x, x), Batch(x, x), designed=True).position is None
