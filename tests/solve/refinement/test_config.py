"""The limits of a refinement are data: frozen, with defaults from the calibration."""

from __future__ import annotations

import dataclasses

import pytest

from attnlearn import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve.refinement import RefineConfig, Refined
from attnlearn.solve.refinement import _config as config


def test_defaults_are_those_of_the_calibration():
    found = RefineConfig()
    assert (found.max_steps, found.max_inner) == (calibration.STEPS_MOST, calibration.INNER_MOST)
    assert found.equations_per_unknown == calibration.EQUATIONS_PER_UNKNOWN
    assert found.deadline is None


def test_a_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RefineConfig().max_steps = 3


def test_the_steps_are_not_printed():
    layer = AttentionLayer.random(1, 2)
    assert "steps" not in repr(Refined(layer, 0.0, "floor", 1, None, [{"step": 0}]))


def test_the_package_shows_what_its_module_defines():
    assert RefineConfig is config.RefineConfig
    assert Refined is config.Refined
