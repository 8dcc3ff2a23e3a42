"""C1 beside errors: about the recorded outputs or the layer behind them, and the bound covers the error that is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnlearn._certificate import Status
from attnlearn.solve._batch import clipped_norms
from attnlearn.solve.noise._function import function_beside_errors
from attnlearn.solve.noise._halves import Halves, fit_halves
from attnlearn.solve.noise._setting import CONFIDENCE
from attnlearn.solve.noise._spread import spread

from ._problems import TRUTH, fitted, setting, status


def test_the_bound_covers_the_error_against_the_layer_behind(rng):
    layer, used = fitted(rng, fresh=200)
    at = setting(layer, used)
    claim, checks = function_beside_errors(at, spread(layer, at.used), fit_halves(layer, at.used))
    x = np.random.default_rng(99).standard_normal((2_000, 4, 5))
    error = np.linalg.norm(layer(x) - TRUTH(x), axis=(1, 2)) / clipped_norms(layer(x), at.scale)
    assert claim.value["against"] == "layer"
    assert np.mean(error <= claim.value["error"]) >= claim.value["fraction"]
    assert claim.value["error"] < claim.value["recorded"]
    assert claim.value["error"] < 10 * error.max()  # and says something
    assert claim.established
    assert claim.confidence == CONFIDENCE
    assert at.errors in claim.assumes
    assert set(status(checks).values()) == {Status.HOLDS}


def test_exact_outputs_are_judged_as_recorded(rng):
    layer, used = fitted(rng, level=1e-3, fresh=200)
    at = setting(layer, used)
    claim, _ = function_beside_errors(at, spread(layer, at.used), Halves(layer, layer))
    error = np.linalg.norm(at.residual, axis=(1, 2)) / clipped_norms(at.held.y, at.scale)
    assert claim.value["error"] == pytest.approx(error.max())
    assert claim.established
    assert at.errors not in claim.assumes


def test_without_halves_nothing_is_said_of_the_layer_behind(rng):
    layer, used = fitted(rng, fresh=200)
    at = setting(layer, used)
    claim, checks = function_beside_errors(at, spread(layer, at.used), None)
    assert not claim.established
    assert "against" not in claim.value
    assert status(checks)["C1.error"] is Status.FAILS


def test_the_bias_of_the_halves_counts(rng):
    layer, used = fitted(rng, fresh=200)
    at = setting(layer, used)
    found = spread(layer, at.used)
    away = layer.replace(w=1.2 * layer.w)
    plain, biased = (
        function_beside_errors(at, found, Halves(half, half))[0].value["error"] for half in (layer, away)
    )
    assert biased > plain + 0.1  # both halves are a fifth too large on every input


def test_a_group_is_as_bad_as_its_worst_sequence(rng):
    layer, used = fitted(rng, fresh=200)
    at = setting(layer, used)
    found, halves = spread(layer, at.used), Halves(layer, layer)
    grouped = at._replace(held=replace(at.held, groups=np.arange(200) // 2))
    alone, together = (function_beside_errors(each, found, halves)[0].value for each in (at, grouped))
    assert together["error"] == alone["error"]
    assert together["examples"] == 100
    assert together["fraction"] < alone["fraction"]
