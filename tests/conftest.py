"""Fixtures shared by all tests: the seed, the real layers, signals as at a terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import install_import_hook

CHECKED = os.environ.get("ATTNLEARN_SHAPES", "attnlearn.recovery.sculpt")
"""Packages whose annotated shapes are enforced at every call, separated by commas; an empty text switches that off."""
if find_spec("beartype") is not None and CHECKED:
    import tests.shapes  # noqa: F401  the hook finds it by name

    install_import_hook(CHECKED.split(","), "tests.shapes.checked")  # before anything of theirs is imported

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


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell that runs the suite in the background ignores Ctrl-C, and child processes would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
