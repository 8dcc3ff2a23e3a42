"""The tables of the hardness suite: the wall, and certificates on hard layers."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

from attnlearn.reproduce._cases import share as with_interval
from attnlearn.reproduce._learners import LEARNERS, SUCCESS
from benchmarks.render._markdown import NOT_RUN, table

FAMILIES = {"generic": "random layers", "parity": "parities"}


def tables(lines: list[dict[str, Any]]) -> str:
    """Both of them, from the lines of the suite."""
    walls = [line for line in lines if line["case"].get("what") == "wall"]
    families = [line for line in lines if line["case"].get("what") == "family"]
    parts = [wall(walls), outcomes(walls)] if walls else []
    parts += [certificates(walls, families)]
    return "\n\n".join(parts)


def _points(lines: list[dict[str, Any]]) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for line in lines:
        case = line["case"]
        found.setdefault((case["family"], case["learner"], case["heads"]), []).append(line["result"])
    return found


def wall(lines: list[dict[str, Any]]) -> str:
    """Runs that learned the layer, with the 95 % interval of the rate, and the median time of a run."""
    points = _points(lines)
    heads = sorted({m for _, _, m in points})
    rows = [
        [f"{told}, {learner}", *(_learned(points.get((family, learner, m))) for m in heads)]
        for family, told in FAMILIES.items()
        for learner in LEARNERS
    ]
    return table(["learned", *(f"m = {m}" for m in heads)], rows)


def _learned(results: list[dict[str, Any]] | None) -> str:
    if not results:
        return NOT_RUN
    found = with_interval(sum(result["error"] <= SUCCESS for result in results), len(results))
    low, high = found["interval"]
    seconds = median(result["seconds"] for result in results)
    return f"{found['successes']}/{found['runs']} [{low:.2f}, {high:.2f}], {seconds:.1f} s"


def outcomes(lines: list[dict[str, Any]]) -> str:
    """How the runs on parities ended, their errors, and what they read or asked."""
    rows = []
    for (family, learner, heads), results in sorted(_points(lines).items()):
        if family == "generic":
            continue
        errors = [result["error"] for result in results]
        ended = ", ".join(
            f"{name} {count}" for name, count in Counter(r["outcome"] for r in results).most_common()
        )
        spent = median(result["examples"] for result in results)
        rows.append(
            [f"{learner}, m = {heads}", ended, f"{min(errors):.1e} to {max(errors):.1e}", f"{spent:,.0f}"]
        )
    return table(["parities", "outcomes", "function error", "examples or queries, median"], rows)


def certificates(walls: list[dict[str, Any]], families: list[dict[str, Any]]) -> str:
    """Runs, layers learned, certificates, and the false ones among them, over all lines."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in (*walls, *families):
        groups.setdefault(_kind(line["case"]), []).append(line["result"])
    rows = [[name, *_counts(results)] for name, results in groups.items()]
    everything = [result for results in groups.values() for result in results]
    rows.append(["**all**", *_counts(everything)])
    columns = ["layers", "runs", "learned", "certified", "certified, not learned", "false certificates"]
    return table(columns, rows)


def _kind(case: dict[str, Any]) -> str:
    if case["what"] == "wall":
        return f"the wall: {FAMILIES[case['family']]}"
    if "distance" in case:
        return f"nearly degenerate: {case['family']}"
    if "hardness" in case:
        return f"dial at {case['hardness']:g}"
    return f"{case['family']}, m = {case['heads']}, {case['k']} tokens"


def _counts(results: list[dict[str, Any]]) -> list[int]:
    learned = [result["error"] <= SUCCESS for result in results]
    certified = [result["certified"] for result in results]
    return [
        len(results),
        sum(learned),
        sum(certified),
        sum(c and not found for c, found in zip(certified, learned)),
        sum(result["false_certificate"] for result in results),
    ]
