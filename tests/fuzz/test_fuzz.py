"""A few damaged files of every kind: each is read or refused in one line. `benchmarks/fuzz.py` takes thousands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz._loop import fuzz, outcome
from tests.fuzz._mutate import mutated_bytes, mutated_json
from tests.fuzz._targets import TARGETS

INPUTS = dict.fromkeys(TARGETS, 120) | {"npz, whole recover": 6, "npz, whole train": 12}
"""Seconds altogether."""


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path, seed: int) -> None:
    if name == "pt":
        pytest.importorskip("torch", reason="the extra [torch] is not installed")
    tally = fuzz(name, tmp_path, seed, INPUTS[name])
    assert tally.internal == []
    assert tally.hangs == 0
    assert tally.refused > 0
    assert tally.refused + tally.accepted == tally.inputs
    assert tally.peak_mb < 1000


def test_damage_is_damage_and_repeatable(rng) -> None:
    whole = bytes(range(200))
    assert sum(mutated_bytes(whole, rng) != whole for _ in range(100)) > 90
    value = {"a": [1, {"b": 2}], "c": "d"}
    assert sum(json.dumps(mutated_json(value, rng)) != json.dumps(value) for _ in range(100)) > 80
    assert value == {"a": [1, {"b": 2}], "c": "d"}


class Raises:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x: must be 1, got 2"), "refused"),
        (ValueError("two\nlines"), "internal"),
        (ValueError("x: got \x1b[2J"), "internal"),
        (KeyError("x"), "internal"),
        (MemoryError(), "internal"),
        (RecursionError(), "internal"),
    ],
)
def test_only_one_line_is_a_refusal(error: Exception, expected: str) -> None:
    assert outcome(Raises(error)).split(":")[0] == expected
