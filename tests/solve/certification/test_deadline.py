"""A deadline leaves what was not computed not run, and the claims that rest on it not established."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._certificate import Status
from attnlearn.solve import _deadline
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve.certification import certify, second_opinion
from attnlearn.solve.certification._conditioning import smallest_singular
from attnlearn.solve.certification._point import prepare
from attnlearn.solve.certification._spectrum import dense_spectrum


@pytest.fixture
def sides(rng, seed):
    layer = AttentionLayer.random(2, 4, seed=seed)
    x = rng.standard_normal((500, 5, 4))
    held, fitted = (Batch(part, layer(part)) for part in (x[:100], x[100:]))
    return layer, held, fitted


def judged(sides, deadline):
    layer, held, fitted = sides
    return certify(layer, held, fitted, scale=example_scale(fitted), deadline=deadline)


def test_without_time_only_the_error_is_judged(sides):
    found = judged(sides, deadline=0.0)
    assert [claim.established for claim in found.claims] == [True, False, False]
    late = {check.code for check in found.checks if check.status is Status.NOT_RUN}
    assert late == {"C2.apart", "C2.rivals", "C3.tokens", "C3.equations", "C3.bound", "C3.count"}
    assert all(check.value is None for check in found.checks if check.code in late)
    assert not found.certified


def test_a_deadline_far_away_changes_nothing(sides):
    free, limited = judged(sides, deadline=None), judged(sides, deadline=np.inf)
    assert free.certified
    assert str(free) == str(limited)


def test_no_moment_of_the_deadline_establishes_more_than_was_computed(sides, monkeypatch):
    """A clock that counts its readings stops the certificate at every one of its loops."""
    counts = set()
    for most in (1, 5, 40, 80, 110, 10_000):
        counter = itertools.count()
        monkeypatch.setattr(_deadline, "clock", lambda counter=counter: next(counter))
        found = judged(sides, deadline=most)
        left = [check.code for check in found.checks if check.status is Status.NOT_RUN]
        assert found.certified == (not left)
        assert found.claim("C1").established
        counts.add(len(left))
    assert {0, 6} <= counts


def test_a_spectrum_that_was_cut_short_guarantees_nothing(sides):
    layer, held, _ = sides
    assert smallest_singular(layer, held.x, deadline=0.0) is None
    assert dense_spectrum(prepare(layer, held.x, None, None, False), None, deadline=0.0).lower == 0


def test_an_opinion_that_was_cut_short_is_none(sides):
    layer, _, fitted = sides
    assert second_opinion(layer, fitted, deadline=0.0) is None
    assert second_opinion(layer, fitted, deadline=np.inf) == second_opinion(layer, fitted)
