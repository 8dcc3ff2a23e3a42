"""The lines of benchmarks/results/, and the rows they belong to.

Only the tiers `bench` and `full` are published. A case that ran more than once counts once, by its last line; lines of
the full tier win. A row is what all its cases share: everything but the seed. Rows that a suite plans and nobody ran
are kept, so that a table can show them as not run.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
TIERS = ("bench", "full")
IGNORED = ("seed",)


@dataclass
class Row:
    """One row of a table: the case without its seed, the results of its seeds, and how many were planned."""

    case: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    planned: int = 0
    failed: int = 0

    def values(self, *path: str) -> list[float]:
        """A figure of every result that has it, by its path of keys."""
        found = []
        for result in self.results:
            value: Any = result
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int | float):
                found.append(float(value))
        return found


@dataclass
class Suite:
    """Rows of a suite in the order it plans them, and where its lines come from."""

    name: str
    rows: list[Row]
    lines: list[dict[str, Any]]

    @property
    def run(self) -> int:
        """Cases that gave a result."""
        return sum(len(row.results) for row in self.rows)

    @property
    def planned(self) -> int:
        """Cases of the full tier."""
        return sum(row.planned for row in self.rows)

    def origin(self) -> str:
        """Commits, dates and versions of the lines, in words."""
        if not self.lines:
            return "not run"
        commits = sorted({line["commit"].rstrip("+") for line in self.lines})
        dates = sorted({line["date"] for line in self.lines})
        machines = sorted(
            {
                f"{line['cpus']} CPU{'s' if line['cpus'] > 1 else ''} ({line['machine']})"
                for line in self.lines
            }
        )
        shown = ", ".join(f"`{commit}`" for commit in commits[:6]) + (
            " and others" if len(commits) > 6 else ""
        )
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        changed = sum(line["commit"].endswith("+") for line in self.lines)
        note = f"; {changed} of them with uncommitted changes beside" if changed else ""
        return f"{self.run} cases, {when}, {' and '.join(machines)}, commits {shown}{note}"


def read(name: str, folder: Path = RESULTS) -> Suite:
    """The published lines of a suite, together with the rows it plans."""
    latest: dict[str, dict[str, Any]] = {}
    for tier in TIERS:
        path = folder / f"{tier}-{name}.jsonl"
        if path.is_file():
            for text in path.read_text("utf-8").splitlines():
                line = json.loads(text)
                latest[json.dumps(line["case"], sort_keys=True)] = line
    rows: dict[str, Row] = {}
    for case in _planned(name):
        _row(rows, case).planned += 1
    for line in latest.values():
        row = _row(rows, line["case"])
        if "result" in line:
            row.results.append(line["result"])
        else:
            row.failed += 1
    return Suite(name, list(rows.values()), [line for line in latest.values() if "result" in line])


def _planned(name: str) -> list[dict[str, Any]]:
    suite = importlib.import_module(f"benchmarks.{name}")
    return suite.cases("full")


def _row(rows: dict[str, Row], case: dict[str, Any]) -> Row:
    shared = {key: value for key, value in case.items() if key not in IGNORED}
    return rows.setdefault(json.dumps(shared, sort_keys=True), Row(shared))
