"""Numbers and tables in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from benchmarks.render._lines import Row

NOT_RUN = "not run"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers to the right."""
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def figure(values: Sequence[float], form: str = "{:.2g}") -> str:
    """The median, or a dash."""
    return form.format(median(values)) if values else "–"


def worst(values: Sequence[float]) -> str:
    """Median and largest of some errors."""
    if not values:
        return "–"
    return f"{median(values):.1e}" if len(values) == 1 else f"{median(values):.1e} ({max(values):.1e})"


def share(hits: int, total: int) -> str:
    """A count of a total."""
    return f"{hits}/{total}" if total else NOT_RUN


def cases(row: Row) -> str:
    """How many cases a row rests on, of how many planned, and how many ended in an error."""
    if not row.results and not row.failed:
        return NOT_RUN
    failed = f", {row.failed} failed" if row.failed else ""
    return f"{len(row.results)} of {max(row.planned, len(row.results) + row.failed)}{failed}"


def common(row: Row, name: str = "outcome") -> str:
    """The outcomes of a row, most frequent first."""
    found = Counter(str(result.get(name)) for result in row.results)
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{outcome} {count}" for outcome, count in found.most_common())
