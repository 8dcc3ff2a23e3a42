"""Ratios to rivals that were published before; one that fell by more than a third is shown loudly.

`results/published.json` keeps, for every ratio, the value it had when it was last published without having fallen. A
fallen one keeps its old value there, so that it stays loud until it is mended or the file is edited by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from benchmarks.render._lines import RESULTS, Suite
from benchmarks.render._suites import _training_name, describe_recover

FELL = 2 / 3
PUBLISHED = "published.json"


def ratios(suites: dict[str, Suite]) -> dict[str, float]:
    """Every ratio to a rival in the results, larger is better, by a name that stays the same."""
    found: dict[str, list[float]] = {}
    for row in suites["recover"].rows:
        if row.case["rival"]:
            name = f"{describe_recover(row.case)}, {row.case['num']:,} examples"
            for told in ("heads", "heads and rank"):
                found[f"recover against Adam, told {told}: {name}"] = row.values(
                    "students", told, "over_ours", "compiled"
                )
    for row in suites["refine"].rows:
        if row.case["rival"]:
            name = "whole matrices" if row.case.get("whole") else f"d = {row.case.get('dim')}"
            found[f"refine against L-BFGS: {name}"] = row.values("ratio")
    for row in suites["training"].rows:
        for rival in ("torch", "jax"):
            found[f"training against {rival}: {_training_name(row)}"] = row.values(
                "times_faster", rival, "median"
            )
        found[f"training: {_training_name(row)}"] = row.values("times_faster", "median")
    return {name: round(median(values), 3) for name, values in found.items() if values}


def fallen(now: dict[str, float], before: dict[str, float]) -> list[str]:
    """One sentence for every ratio below two thirds of what was published.

    >>> fallen({"a": 2.0, "b": 3.0}, {"a": 4.0, "b": 3.1})
    ['a: 2 ×, was 4 ×']
    """
    return [
        f"{name}: {value:g} ×, was {before[name]:g} ×"
        for name, value in now.items()
        if value < FELL * before.get(name, 0)
    ]


def published(folder: Path = RESULTS) -> dict[str, float]:
    """What was published before."""
    path = folder / PUBLISHED
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def kept(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """What to remember: new values, except of ratios that fell."""
    fell = {name for name, value in now.items() if value < FELL * before.get(name, 0)}
    return dict(
        sorted({**before, **{name: value for name, value in now.items() if name not in fell}}.items())
    )
