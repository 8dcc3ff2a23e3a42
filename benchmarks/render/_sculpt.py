"""The tables of the sculpting suite: layers, growth, targets, memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.reporting import Lines, Series
from benchmarks.render._markdown import NOT_RUN

EXACT = 1e-6


def tables(lines: list[dict[str, Any]], planned: Iterable[dict[str, Any]] = ()) -> str:
    """All of them, from the lines of the suite; `planned` cases that nobody ran are shown as not run."""
    plain = [line for line in lines if _is_layer(line["case"])]
    parts = [layers(plain, [case for case in planned if _is_layer(case)])]
    targets = [line for line in lines if "target" in line["case"]]
    memory = [line for line in lines if line["case"].get("kind") == "memory"]
    parts += [growth(plain)] if plain else []
    parts += [by_target(targets)] if targets else []
    parts += [peak(memory)] if memory else []
    return "\n\n".join(parts)


def _is_layer(case: dict[str, Any]) -> bool:
    return "target" not in case and "kind" not in case


def layers(lines: list[dict[str, Any]], planned: list[dict[str, Any]]) -> str:
    """One row per kind of layer: the three columns, and what the body was like."""
    shared = ("tokens", "d", "k", "m", "scale")
    rows: dict[tuple, list[dict[str, Any]]] = {tuple(case[name] for name in shared): [] for case in planned}
    for line in lines:
        rows.setdefault(tuple(line["case"][name] for name in shared), []).append(line["result"])
    heads = (
        "tokens", "d", "k", "m", "scale", "cases", "full: exact (1e-6)", "m found", "examples", "seconds",
        "without refine: Theta, W error", "hull error", "width across", "random starts: exact", "starts exact",
    )  # fmt: skip
    table = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for key, results in rows.items():
        if not results:
            cells = [*key, NOT_RUN, *["–"] * (len(heads) - len(key) - 1)]
            table.append("| " + " | ".join(map(str, cells)) + " |")
            continue
        full = [result["full"] for result in results]
        before = [result["without_refine"] for result in results]
        starts = [result["random_starts"] for result in results]
        cells = [
            len(full),
            sum((entry.get("error") or np.inf) < EXACT for entry in full),
            sum(entry.get("num_heads") == key[3] for entry in full),
            _median(full, "examples", "{:.2g}"),
            _median(full, "seconds", "{:.0f}"),
            _median(before, "weights_error", "{:.2%}"),
            _median(before, "hull_error", "{:.2%}"),
            _median(before, "width_across", "{:.2%}"),
            sum(entry["error"] < EXACT for entry in starts),
            f"{sum(entry['exact_starts'] for entry in starts)} of {sum(entry['starts'] for entry in starts)}",
        ]
        table.append("| " + " | ".join(str(cell) for cell in (*key, *cells)) + " |")
    return "\n".join(table)


def by_target(lines: list[dict[str, Any]]) -> str:
    """What a function error costs when no more than that is asked for."""
    rows: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        rows[line["case"]["target"]].append(line["result"])
    table = ["| target (d = 8, k = 4, m = 2) | cases | certified | examples | seconds |", "|" + "---|" * 5]
    for target, results in sorted(rows.items(), reverse=True):
        full = [result["full"] for result in results]
        reached = sum(result["reached"] for result in results)
        cells = (
            target,
            len(full),
            reached,
            _median(full, "examples", "{:.2g}"),
            _median(full, "seconds", "{:.0f}"),
        )
        table.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(table)


GROWTH = (
    ("m", "number of heads m", {"d": 9, "k": 3, "scale": 4.5}),
    ("d", "dimension d", {"k": 4, "m": 2, "scale": 4.0}),
    ("k", "tokens k", {"d": 12, "m": 2, "scale": 4.0}),
)
"""What is varied, and what stays the same."""


def growth(lines: list[dict[str, Any]]) -> str:
    """Examples per slab in the first round, fitted against m, d and k where the rest is the same; whole runs beside."""
    heads = ("growth of", "with", "values", "examples per slab", "fitted", "examples", "seconds")
    table = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for axis, _, fixed in GROWTH:
        points = grown(lines, axis, fixed)
        if len(points) < 2:
            continue
        values, per_slab, examples, seconds = zip(*points)
        cells = [
            axis,
            ", ".join(f"{name} = {value:g}" for name, value in fixed.items()),
            ", ".join(f"{value:g}" for value in values),
            ", ".join(f"{value:.2g}" for value in per_slab),
            fitted(axis, np.array(values), np.array(per_slab)),
            ", ".join(f"{value:.2g}" for value in examples),
            ", ".join(f"{value:.0f}" for value in seconds),
        ]
        table.append("| " + " | ".join(cells) + " |")
    return "\n".join(table)


def grown(
    lines: list[dict[str, Any]], axis: str, fixed: dict[str, float]
) -> list[tuple[float, float, float, float]]:
    """In the order of the axis: its value, and medians of examples per slab, examples and seconds."""
    rows: dict[float, list[tuple[float, float, float]]] = defaultdict(list)
    for line in lines:
        case, full = line["case"], line["result"]["full"]
        same = case["tokens"] == "Boolean" and all(case[name] == value for name, value in fixed.items())
        if same and full.get("rounds"):
            first = full["rounds"][0]
            per_slab = (first["examples"] - SculptConfig().held_examples) / first["slabs"]
            rows[case[axis]].append((per_slab, full["examples"], full["seconds"]))
    return [(value, *np.median(found, axis=0).tolist()) for value, found in sorted(rows.items())]


def fitted(axis: str, values: np.ndarray, per_slab: np.ndarray) -> str:
    """A factor per head (the price is exponential in m), a power of d or k."""
    if axis == "m":
        return f"times {np.exp(np.polyfit(values, np.log(per_slab), 1)[0]):.0f} per head"
    return f"{axis}^{np.polyfit(np.log(values), np.log(per_slab), 1)[0]:.1f}"


def pictures(lines: list[dict[str, Any]]) -> dict[str, Lines]:
    """Examples and seconds against m, d, k and the target, where there are at least two points."""
    drawn = {}
    plain = [line for line in lines if _is_layer(line["case"])]
    for axis, label, fixed in GROWTH:
        same = ", ".join(f"{name} = {value:g}" for name, value in fixed.items())
        points = [(value, *rest) for value, _, *rest in grown(plain, axis, fixed)]
        drawn[f"sculpt-{axis}.svg"] = _curves(f"Sculpting, {same}", points, label, log_x=axis != "m")
    rows: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if "target" in line["case"] and line["result"]["reached"]:
            full = line["result"]["full"]
            rows[line["case"]["target"]].append((full["examples"], full["seconds"]))
    points = [(target, *np.median(found, axis=0).tolist()) for target, found in sorted(rows.items())]
    drawn["sculpt-target.svg"] = _curves(
        "Sculpting to a target, d = 8, k = 4, m = 2", points, "function error"
    )
    return {name: display for name, display in drawn.items() if len(display.series[0].x) > 1}


def _curves(title: str, points: list[tuple[float, float, float]], label: str, log_x: bool = True) -> Lines:
    values, examples, seconds = ([point[place] for point in points] for place in range(3))
    series = (Series("examples", values, examples), Series("seconds", values, seconds))
    return Lines(title, series=series, x_label=label, y_label="count", log_x=log_x, log_y=True)


def peak(lines: list[dict[str, Any]]) -> str:
    """Peak memory of runs that read their whole budget."""
    said = [
        f"{line['result']['full']['examples']:,} examples (d = {line['case']['d']}, k = {line['case']['k']}) were read "
        f"in {line['result']['full']['seconds']:.0f} s with a peak of {line['result']['peak_gigabytes']:.2f} GB."
        for line in lines
    ]
    return "\n".join(said)


def _median(entries: list[dict[str, Any]], name: str, form: str) -> str:
    values = [entry[name] for entry in entries if entry.get(name) is not None]
    return form.format(float(np.median(values))) if values else "not reached"
