"""C3 beside errors: the bound covers the error that is there, and each condition on its own keeps the claim open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnlearn._certificate import Claim, Status
from attnlearn.solve.noise._halves import Halves, fit_halves
from attnlearn.solve.noise._parameters import parameters_beside_errors
from attnlearn.solve.noise._setting import CONFIDENCE, part_norms
from attnlearn.solve.noise._spread import spread

from ._problems import TRUTH, fitted, setting, status

COUNTED = Claim("C2", "", True, 2, assumes=("something",), scope={"apart": 0.1})


@pytest.fixture
def problem(rng):
    layer, used = fitted(rng, fresh=200)
    at = setting(layer, used)
    return at, spread(layer, at.used), fit_halves(layer, at.used)


def failed(checks) -> list[str]:
    return [code for code, found in status(checks).items() if found is Status.FAILS]


def test_the_bound_covers_every_head(problem):
    at, found, halves = problem
    claim, checks = parameters_beside_errors(at, found, halves, COUNTED, None)
    assert claim.established, failed(checks)
    assert claim.confidence == CONFIDENCE
    assert claim.assumes == COUNTED.assumes
    assert claim.scope == COUNTED.scope
    for part in ("theta", "w"):
        gap = getattr(at.layer, part) - getattr(TRUTH, part)
        error = np.linalg.norm(gap, axis=(1, 2)) / part_norms(at.layer)[part]
        assert np.all(error <= claim.value["heads"])
        assert np.all(claim.value["heads"] >= found.typical(part) / part_norms(at.layer)[part])
    assert claim.value["weights"] == max(claim.value["heads"]) <= at.accuracy


def test_each_condition_keeps_it_open(problem):
    at, found, halves = problem
    # As far apart as no spread predicts, around the same mean: no bias.
    torn = Halves(at.layer.replace(w=1.5 * at.layer.w), at.layer.replace(w=0.5 * at.layer.w))
    cases = {
        "C3.bound": (at._replace(accuracy=1e-3), found, halves, COUNTED),
        "C3.halves": (at, found, torn, COUNTED),
        "C3.count": (at, found, halves, replace(COUNTED, established=False)),
    }
    for code, (asked, drawn, both, counted) in cases.items():
        claim, checks = parameters_beside_errors(asked, drawn, both, counted, None)
        assert failed(checks) == [code]
        assert not claim.established


def test_the_bias_of_the_halves_is_part_of_the_bound(problem):
    at, found, _ = problem
    away = at.layer.replace(w=1.1 * at.layer.w)
    plain, biased = (
        parameters_beside_errors(at, found, Halves(half, half), COUNTED, None)[0].value
        for half in (at.layer, away)
    )
    assert biased["weights"] >= 0.1 > plain["weights"]


def test_biases_that_are_not_known_to_the_accuracy_are_not_bounded(problem):
    at, found, halves = problem
    claim, _ = parameters_beside_errors(at, found, halves, COUNTED, None)
    assert claim.value["biases"] is None  # zero biases: relative to a thousandth of the norm of all heads
    assert "biases are not bounded" in claim.text
    known, _ = parameters_beside_errors(at._replace(accuracy=1e3), found, halves, COUNTED, None)
    assert known.value["biases"] == known.value["bound"] > 0.05


def test_the_rank_that_is_taken_for_granted_is_stated(problem):
    at, found, halves = problem
    claim, _ = parameters_beside_errors(at._replace(rank=3), found, halves, COUNTED, None)
    assert "rank at most 3" in claim.text
    assert claim.value["rank"] == 3


def test_without_halves_nothing_is_bounded(problem):
    at, found, _ = problem
    claim, checks = parameters_beside_errors(at, found, None, COUNTED, None)
    assert not claim.established
    assert status(checks) == {"C3.halves": Status.NOT_RUN}
