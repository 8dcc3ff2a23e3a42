"""Fixtures shared by all tests: the seed, the real layers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

LAYERS = Path(__file__).parent / "layers"
SEEDS = [int(seed) for seed in os.environ.get("ATTNLEARN_SEEDS", "0").split(",")]


@pytest.fixture(params=SEEDS, ids=lambda seed: f"seed{seed}")
def seed(request: pytest.FixtureRequest) -> int:
    """0 by default; ATTNLEARN_SEEDS=0,1,2 runs every seeded test for each."""
    return request.param


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def layers() -> Path:
    """The folder of the real attention layers."""
    return LAYERS
