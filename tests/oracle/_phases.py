"""Which phase of an extraction asks which query, so that an oracle can misbehave in the middle of each."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from attnlearn.engine import Progress

PHASES = ("measure", "probe", "separate", "match", "complete", "polish", "ask")
START = "start"


class Watched(Progress):
    """Remembers which phase runs."""

    now = ""

    @contextmanager
    def phase(self, name, total=None):
        self.now = name
        yield


def middles(calls: list[str]) -> dict[str, int]:
    """How many queries are answered before the middle one of every phase, given the phase of each query."""
    assert set(calls) == set(PHASES)
    numbers = {phase: [i for i, name in enumerate(calls) if name == phase] for phase in PHASES}
    return {START: 0} | {phase: found[len(found) // 2] for phase, found in numbers.items()}


def everywhere(names, *, slow=()) -> list:
    """Every name at the start and in the middle of every phase; all but the start and one phase in turn are slow tests.

    Names in `slow` wait for a timeout: beside the start all their phases are slow tests.
    """
    cases = []
    for number, name in enumerate(names):
        for place in (START, *PHASES):
            quick = place == START or (place == PHASES[number % len(PHASES)] and name not in slow)
            cases.append(pytest.param(name, place, marks=[] if quick else [pytest.mark.slow]))
    return cases
