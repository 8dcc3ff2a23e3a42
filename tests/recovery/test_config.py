"""The configuration of the methods that look for heads in the data."""

from __future__ import annotations

import dataclasses

import pytest

from attnlearn import recovery
from attnlearn.recovery._config import SpectralConfig


def test_it_is_public_frozen_and_chooses_the_scale_itself():
    assert recovery.SpectralConfig is SpectralConfig
    config = SpectralConfig()
    assert config.token_scale is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_examples = 3
