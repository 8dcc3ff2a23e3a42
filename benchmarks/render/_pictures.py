"""Figures of docs/benchmarks.md: time and examples against d and m, drawn by the report's own displays."""

from __future__ import annotations

from statistics import median

from attnlearn.reporting import Lines, Series
from benchmarks.render import _sculpt
from benchmarks.render._lines import Row, Suite

STYLE = """<style>
svg { background: #fff; } text { font: 13px system-ui, sans-serif; fill: #5b6168; } .end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: #e3e1dc; } .axis { stroke: #5b6168; } .curve { fill: none; stroke-width: 2; } .bound { stroke-dasharray: 6 4; }
.level { stroke: #b3261e; stroke-dasharray: 5 4; } .level-name { fill: #b3261e; }
.curve.c0 { stroke: #24579d; } .curve.c1 { stroke: #c4571b; } .curve.c2 { stroke: #13795b; } .curve.c3 { stroke: #8a4fa3; }
.point.c0 { fill: #24579d; } .point.c1 { fill: #c4571b; } .point.c2 { fill: #13795b; } .point.c3 { fill: #8a4fa3; }
</style>"""


def pictures(suites: dict[str, Suite]) -> dict[str, Lines]:
    """File name and display of every figure that has at least two points."""
    recover, extract = suites["recover"].rows, suites["extract"].rows
    base = {
        "layer": "random",
        "tokens": "gaussian",
        "rival": False,
        "noise": 0.0,
        "stored": "",
        "causal": False,
        "bias": False,
    }
    growing = [row for row in recover if _has(row, base | {"dim": 32, "rank": 8})]
    counted = suites["heads"].rows if "heads" in suites else []
    halved = [row for row in recover if _has(row, base | {"dim": 32, "heads": 8, "rank": 4, "rival": True})]
    dims = [row for row in extract if _has(row, {"layer": "random", "heads": 4, "rank": 4})]
    heads = [row for row in extract if _has(row, {"layer": "random", "dim": 16, "rank": None})]
    drawn = [
        row
        for row in (suites["scale"].rows if "scale" in suites else [])
        if _has(row, {"kind": "drawn", "heads": 8, "scale": 2.0})
    ]
    found = {
        "scale-dim.svg": _lines("Large layers from examples drawn on demand, 8 heads", drawn, "dim", {"examples": "examples", "seconds": "seconds"}, "dimension d", "count"),
        "scale-memory.svg": _lines("Peak memory, 8 heads", drawn, "dim", {"peak_gigabytes": "measured", "planned_gigabytes": "planned"}, "dimension d", "GB"),
        "recover-time-heads.svg": _lines("Seconds to recover, d = 32, rank 8", growing, "heads", {"seconds": "recover"}, "number of heads", "seconds"),
        "heads-examples.svg": _lines("Certified recovery, d = 32, rank 8", counted, "heads", {"examples": "examples", "seconds": "seconds"}, "number of heads", "count"),
        "recover-examples.svg": _success(halved),
        "extract-dim.svg": _lines("Queries to extract, m = 4, rank 4", dims, "dim", {"sequences": "sequences asked", "unknowns": "unknowns"}, "dimension d", "count"),
        "extract-heads.svg": _lines("Queries to extract, d = 16, full rank", heads, "heads", {"scalars": "scalars read", "published_scalars": "published count", "unknowns": "unknowns"}, "number of heads", "count"),
    }  # fmt: skip
    known = {name: display for name, display in found.items() if max(len(s.x) for s in display.series) > 1}
    return known | (_sculpt.pictures(suites["sculpt"].lines) if "sculpt" in suites else {})


def svg(display: Lines) -> str:
    """The picture as a file of its own, with its colours inside."""
    text = display.svg()
    cut = text.index(">") + 1
    return text[:cut] + STYLE + text[cut:] + "\n"


def _has(row: Row, wanted: dict[str, object]) -> bool:
    return bool(row.results) and all(row.case.get(name) == value for name, value in wanted.items())


def _lines(
    title: str, rows: list[Row], across: str, names: dict[str, str], x_label: str, y_label: str
) -> Lines:
    rows = sorted(rows, key=lambda row: row.case[across])
    series = []
    for name, label in names.items():
        known = [(row.case[across], median(row.values(name))) for row in rows if row.values(name)]
        series.append(Series(label, [x for x, _ in known], [y for _, y in known]))
    return Lines(title, series=tuple(series), x_label=x_label, y_label=y_label, log_x=True, log_y=True)


def _success(rows: list[Row]) -> Lines:
    """Ours counts when it is certified, the student when its error on fresh examples is at most 1e-6."""
    rows = sorted(rows, key=lambda row: row.case["num"])
    ratios = [_equations_per_unknown(row.case) for row in rows]
    ours = [sum(r["certified"] for r in row.results) / len(row.results) for row in rows]
    student = [
        sum(r["students"]["heads and rank"]["reached"] for r in row.results) / len(row.results)
        for row in rows
    ]
    return Lines(
        "Share of layers recovered, d = 32, m = 8, rank 4",
        series=(
            Series("recover, certified", ratios, ours),
            Series("Adam, given heads and rank", ratios, student),
        ),
        x_label="equations per unknown",
        y_label="share",
        log_x=True,
    )


def _equations_per_unknown(case: dict) -> float:
    """Output entries over the free entries of Theta and W of the given rank."""
    unknowns = case["heads"] * 2 * case["rank"] * (2 * case["dim"] - case["rank"])
    return case["num"] * case["k"] * case["dim"] / unknowns
