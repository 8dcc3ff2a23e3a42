"""The loop: damage, read, count. An internal error is anything but a refusal in one line without control characters."""

from __future__ import annotations

import signal
import time
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn import AttnlearnError
from tests.fuzz._targets import TARGETS

HANG_SECONDS = 30
"""A single damaged file that takes longer is a hang; a good one takes well under a second."""


class Hang(BaseException):
    """Raised by the alarm; no `except Exception` on its way can catch it."""


@dataclass
class Tally:
    """What became of the inputs of one run; `peak_mb` is the growth of the process, `resident_mb` all of it at its peak."""

    inputs: int = 0
    refused: int = 0
    accepted: int = 0
    hangs: int = 0
    internal: list[str] = field(default_factory=list)
    slowest: float = 0.0
    peak_mb: float = 0.0
    resident_mb: float = 0.0


def fuzz(name: str, folder: Path, seed: int, inputs: int) -> Tally:
    """Read `inputs` damaged files of one target; input i depends on (seed, i) alone."""
    target, tally = TARGETS[name](folder), Tally()
    before = resident()
    for number in range(inputs):
        rng = np.random.default_rng([seed, number])
        target.damage(rng)
        started = time.perf_counter()
        ended = outcome(target)
        tally.slowest = max(tally.slowest, time.perf_counter() - started)
        tally.inputs += 1
        tally.refused += ended == "refused"
        tally.accepted += ended == "accepted"
        tally.hangs += ended == "hang"
        if ended.startswith("internal"):
            tally.internal.append(f"({seed}, {number}) {ended}")
    tally.resident_mb = peak()
    tally.peak_mb = tally.resident_mb - before
    return tally


def outcome(target: Any) -> str:
    try:
        with alarm(HANG_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            target.read()
    except Hang:
        return "hang"
    except (AttnlearnError, ValueError) as error:
        text = str(error)
        plain = len(text) < 2000 and not any(unicodedata.category(letter) == "Cc" for letter in text)
        return "refused" if plain else f"internal: not one plain line: {text[:200]!r}"
    except Exception as error:
        return f"internal: {type(error).__name__}: {str(error)[:200]}"
    return "accepted"


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def resident() -> float:
    """Megabytes that this process has now; the peak is counted from here."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak()
    return _status("VmRSS")


def peak() -> float:
    """The most megabytes that it had since `resident`."""
    return _status("VmHWM")


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return float("nan")
