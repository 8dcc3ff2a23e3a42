"""The methods: each name is a table, and says how examples are drawn."""

from __future__ import annotations

import pytest

from attnlearn import AttentionLayer, data
from attnlearn.recovery._config import SpectralConfig
from attnlearn.recovery._methods import METHODS, method_for, method_from
from attnlearn.recovery._proposers import TABLES
from attnlearn.recovery.sculpt import SculptConfig


@pytest.mark.parametrize("name", METHODS)
def test_every_name_has_a_table(name):
    method = method_for(name, None, None)
    assert method.table or method.route is not None
    assert method.num_examples > 0
    if name in TABLES:
        assert method.table is TABLES[name]


def test_spectral_is_the_former_name_of_the_moment():
    assert method_for("spectral", None, None).name == "moment"
    assert method_for("spectral", None, None).table is TABLES["moment"]


def test_examples_are_drawn_as_the_configuration_says():
    method = method_for("auto", SpectralConfig(num_examples=123, token_scale=2.0), None)
    assert method.num_examples == 123
    assert method.scale(data.Gaussian(4, 6), AttentionLayer.random(1, 6), 0) == 2.0
    weak = AttentionLayer.random(2, 6, scale=0.02)
    assert method_for("auto", None, None).scale(data.Gaussian(4, 6), weak, 0) > 2


def test_sculpting_has_a_check_of_its_own_and_leaves_tokens_as_they_are():
    method = method_for("sculpt", SculptConfig(num_examples=5_000, held_examples=9_000), None)
    assert method.num_examples == 5_000
    assert method.check is not None
    assert method.scale is None


def test_a_start_is_proposed_and_only_its_misfit_is_looked_into():
    start = AttentionLayer.random(2, 8, rank=2)
    method = method_from(start)
    assert method.name == "start"
    assert [row.name for row in method.table] == ["start", "cause of the misfit"]
    assert method.table[0].rank == 2
    assert method.config != method_from(AttentionLayer.random(2, 8, rank=2, seed=1)).config


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("guess", None, "method: must be one of auto, moment, wide, sculpt, linear, spectral, got 'guess'"),
        ("auto", SculptConfig(), "config: must be a SpectralConfig"),
        ("sculpt", SpectralConfig(), "config: must be a SculptConfig"),
    ],
)
def test_other_names_and_configurations_are_one_line(name, config, message):
    with pytest.raises(ValueError, match="^" + message):
        method_for(name, config, None)
    with pytest.raises(ValueError, match=r"^start: must be an AttentionLayer, got 'str'"):
        method_from("layer")
