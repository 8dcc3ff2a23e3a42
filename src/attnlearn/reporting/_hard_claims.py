"""Displays of `reproduce learning` and `reproduce hardness`."""

from __future__ import annotations

from typing import Any

from attnlearn.reporting._displays import Bars, Display, Lines, Series

SMALLEST = 1e-16
"""Errors below rounding are drawn at rounding, because a logarithm has no zero."""


def wall(part: dict[str, Any]) -> list[Display]:
    """Success and cost of every learner against the number of heads, one picture each per family of layers."""
    found: list[Display] = []
    for family in dict.fromkeys(point["family"] for point in part["points"]):
        found.append(
            Lines(
                f"Layers of the family {family}",
                "Share of runs in which the learner found the layer, with its 95 % interval.",
                series=_by_learner(part, family, "rate"),
                x_label="number of heads",
                y_label="share of runs",
            )
        )
        found.append(
            Lines(
                f"What the family {family} cost",
                "Median seconds of a run, whether it found the layer or not.",
                series=_by_learner(part, family, "seconds"),
                x_label="number of heads",
                y_label="seconds",
                log_y=True,
            )
        )
    return found


def _by_learner(part: dict[str, Any], family: str, figure: str) -> tuple[Series, ...]:
    """One figure against the number of heads, a line for every learner."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for point in part["points"]:
        if point["family"] == family:
            rows.setdefault(str(point["learner"]), []).append(point)
    return tuple(
        Series(
            learner,
            [point["heads"] for point in points],
            [point[figure] for point in points],
            spread=[point["interval"] for point in points] if figure == "rate" else (),
        )
        for learner, points in rows.items()
    )


def statistical(part: dict[str, Any]) -> list[Display]:
    """Queries that a statistical-query learner needed, and the bound."""
    series = []
    for tolerance in sorted({point["tolerance"] for point in part["points"]}):
        rows = [point for point in part["points"] if point["tolerance"] == tolerance]
        members = [row["members"] for row in rows]
        series.append(Series(f"tolerance {tolerance:g}", members, [row["queries"] for row in rows]))
        series.append(Series(f"bound at {tolerance:g}", members, [row["bound"] for row in rows], bound=True))
    return [
        Lines(
            "Statistical queries against their lower bound",
            "No learner that asks such queries can stay below the dashed line.",
            series=tuple(series),
            x_label="members of the family",
            y_label="queries",
            log_x=True,
            log_y=True,
        )
    ]


def elimination(part: dict[str, Any]) -> list[Display]:
    """Elimination over GF(2), which the bound does not bind, against flipped labels."""
    rates = [float(rate) for rate in part["by_rate"]]
    return [
        Lines(
            "A learner the bound does not bind",
            "Gaussian elimination over GF(2) solves parities, until labels are flipped.",
            series=(Series("share solved", rates, [entry["rate"] for entry in part["by_rate"].values()]),),
            x_label="share of flipped labels",
            y_label="share solved",
            levels=(("chosen queries, no flips", part["chosen_queries"]["rate"]),),
        )
    ]


def dial(part: dict[str, Any]) -> list[Display]:
    """Error of every learner as layers go from generic to parity."""
    return [
        Lines(
            "From generic to parity",
            "Function error of every learner.",
            series=tuple(
                Series(str(name), part["hardness"], [None if v is None else max(v, SMALLEST) for v in curve])
                for name, curve in part["curves"].items()
            ),
            x_label="hardness",
            y_label="function error",
            log_y=True,
        )
    ]


def learning(part: dict[str, Any]) -> list[Display]:
    """Width of the body by round, errors, and time beside that of the moment route."""
    points = part["points"]
    names = [f"d {p['dim']}, k {p['tokens']}, m {p['heads']}" for p in points]
    labels = tuple(names) if len(points) < 4 else tuple(str(number + 1) for number in range(len(points)))
    return [
        Lines(
            "Width of the body by round",
            "Across the hull of the heads, over ‖Θ‖.",
            series=tuple(
                Series(name, list(range(1, len(p["widths_across"]) + 1)), p["widths_across"])
                for name, p in zip(names, points)
            ),
            x_label="round",
            y_label="width",
            log_y=True,
        ),
        *(
            Bars(
                title,
                "Against the true layer; what was not reached is left out.",
                labels=labels,
                values=tuple(p.get(key) for p in points),
                x_label="problem",
                y_label="relative error",
                log=True,
            )
            for key, title in (
                ("crude_sum_error", "Error of the sum of all W"),
                ("hull_error", "Error of the hull of the heads"),
                ("recovery_error", "Error of the recovered layer"),
            )
        ),
        *(
            Bars(title, labels=labels, values=values, x_label="problem", y_label="seconds", log=True)
            for title, values in (
                ("Seconds of sculpting", tuple(p["seconds"] for p in points)),
                ("Seconds of the moment route", tuple(p["spectral"]["seconds"] for p in points)),
            )
        ),
    ]
