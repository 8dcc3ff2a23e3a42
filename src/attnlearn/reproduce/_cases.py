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
        rows = []
        for case in cases:
            key = json.dumps(case, sort_keys=True)
            if key not in done:
                done[key] = jsonable(run(case))
                if saved is not None:
                    saved.save(name, done)
            if show is not None:
                show(f"{key} -> {json.dumps(done[key])[:200]}")
            rows.append({"case": case, "result": done[key]})
        return rows
    finally:
        if saved is not None:
            saved.close()


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
