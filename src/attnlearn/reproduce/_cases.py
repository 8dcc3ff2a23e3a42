"""Cases that run one after the other, with what is finished kept on disk, and shares with their intervals."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from attnlearn._certificate import jsonable
from attnlearn._version import __version__
from attnlearn.engine import Checkpoint


def run_cases(
    name: str,
    cases: Iterable[dict[str, Any]],
    run: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    show: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """`{"case": ..., "result": ...}` for every case; those that a checkpoint holds are not run again.

    >>> run_cases("squares", [{"n": 2}, {"n": 3}], lambda case: {"square": case["n"] ** 2})[1]["result"]
    {'square': 9}
    """
    saved = (
        None
        if checkpoint is None
        else Checkpoint(checkpoint, {"version": __version__, "name": name}, resume=True)
    )
    try:
        stored = None if saved is None else saved.load()
        done: dict[str, Any] = {} if stored is None else dict(stored[1])
        rows, planned = [], list(cases)
        for number, case in enumerate(planned, 1):
            key = json.dumps(case, sort_keys=True)
            kept = key in done
            if not kept:
                done[key] = jsonable(run(case))
                if saved is not None:
                    saved.save(name, done)
            if show is not None:
                how = " (kept)" if kept else ""
                show(f"{name} {number}/{len(planned)}{how}: {in_words(case)} -> {in_words(done[key])}")
            rows.append({"case": case, "result": done[key]})
        return rows
    finally:
        if saved is not None:
            saved.close()


def in_words(figures: dict[str, Any]) -> str:
    """The plain values of a case or of a result, one after the other; lists and what is false are left out.

    >>> in_words({"family": "parity", "heads": 4, "long": False, "error": 0.71234, "widths": [1, 2]})
    'family parity, heads 4, error 0.712'
    """
    plain = {
        name: f"{value:.3g}" if isinstance(value, float) else str(value)
        for name, value in figures.items()
        if isinstance(value, int | float | str) and value is not False
    }
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in plain.items())


def share(successes: int, runs: int, confidence: float = 0.95) -> dict[str, Any]:
    """A success rate with its Clopper-Pearson interval.

    >>> [round(value, 2) for value in share(5, 5)["interval"]]
    [0.48, 1.0]
    """
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, runs - successes + 1))
    high = 1.0 if successes == runs else float(beta.ppf(1 - tail, successes + 1, runs - successes))
    return {"successes": successes, "runs": runs, "rate": successes / runs, "interval": [low, high]}
