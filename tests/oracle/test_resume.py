"""An oracle that dies in the middle of any phase costs nothing: with a cache the run goes on, and no query is asked twice."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn.engine import Progress
from attnlearn.extraction import extract
from attnlearn.extraction._extract import LEARNED
from attnlearn.oracle import Oracle
from attnlearn.oracle._cache import sequence_key


class Watched(Progress):
    """Remembers which phase runs."""

    now = ""

    @contextmanager
    def phase(self, name, total=None):
        self.now = name
        yield


class Mortal:
    """Answers `lives` calls, and says in which phase it was asked what."""

    def __init__(self, layer, lives=None):
        self.layer, self.lives, self.progress = layer, lives, Watched()
        self.calls, self.asked = [], Counter()

    def __call__(self, x):
        if self.lives is not None and len(self.calls) >= self.lives:
            raise RuntimeError("the oracle is no more")
        self.calls.append(self.progress.now)
        self.asked.update(sequence_key(sequence) for sequence in x)
        return self.layer(x)

    def extract(self, folder, **options):
        with Oracle.wrap(self, name="mortal", batch_size=8, cache=folder / "cache") as oracle:
            return extract(oracle, 4, progress=self.progress, raise_on_failure=False, **options)


@pytest.fixture(scope="module")
def layer():
    return AttentionLayer.random(num_heads=2, dim=4, bias=True, seed=1)


@pytest.fixture(scope="module")
def straight(layer, tmp_path_factory):
    """A run without a failure: its calls by phase, its layer, and what is asked repeatedly on purpose."""
    mortal = Mortal(layer)
    solution = mortal.extract(tmp_path_factory.mktemp("straight"))
    assert solution.certified
    assert set(mortal.calls) == {name for name, _ in LEARNED} | {
        "ask"
    }  # certify queries are asked anew in every run
    return mortal, solution


ENDS = [pytest.param(where, saved, marks=pytest.mark.slow) for where in (0.0, 1.0) for saved in (False, True)]


@pytest.mark.parametrize(
    ("where", "saved"), [(0.5, False), pytest.param(0.5, True, marks=pytest.mark.slow), *ENDS]
)
@pytest.mark.parametrize("phase", [name for name, _ in LEARNED])
def test_dead_in_the_middle_of_a_phase(phase, where, saved, layer, straight, tmp_path):
    calls = [number for number, name in enumerate(straight[0].calls) if name == phase]
    options = {"checkpoint": tmp_path / "checkpoint"} if saved else {}
    dead = Mortal(layer, lives=calls[round(where * (len(calls) - 1))])
    solution = dead.extract(tmp_path, **options)
    assert solution.outcome is Outcome.ORACLE_FAILED
    assert "the oracle is no more" in solution.stats["error"]
    assert dead.progress.now == phase
    alive = Mortal(layer)
    solution = alive.extract(tmp_path, **options)
    assert solution.certified
    assert solution.layer == straight[1].layer
    on_purpose = {key for key, times in straight[0].asked.items() if times > 1}  # noise, and who is there
    twice = {key for key, times in (dead.asked + alive.asked).items() if times > 1}
    assert twice <= on_purpose
    assert len(on_purpose) <= 10
