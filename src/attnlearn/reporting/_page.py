"""A page as data: from a JSON result to sections, before any HTML.

`solution` results get verdict, figures of merit, claims, checks, phases and heads; the tables of `leak`, `reproduce` and
other commands get a verdict and their displays. Whatever is in the JSON and has no picture stays readable as a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from attnlearn._cause import SIGNS
from attnlearn._numbers import cell, pretty
from attnlearn._verdict import Verdict, verdict
from attnlearn._words import about
from attnlearn.reporting._displays import Display, Lines
from attnlearn.reporting._extras import extra_sections
from attnlearn.reporting._figures import phase_figures
from attnlearn.reporting._glance import Glance, glance_note, glances
from attnlearn.reporting._heads import Panel, head_panels, overview
from attnlearn.reporting._sections import Section, facts
from attnlearn.reporting._tiles import figures_of_merit, is_trained


@dataclass(frozen=True)
class CheckRow:
    """A check as the page shows it; `bar` is the length of its slack in percent, logarithmic up to 1e6."""

    code: str
    text: str
    status: str
    value: str
    threshold: str
    slack: str
    unit: str
    bar: int


@dataclass(frozen=True)
class Page:
    """Everything a report shows."""

    title: str
    kind: str
    verdict: Verdict
    outcome: str = ""
    tiles: list[tuple[str, str, str]] = field(default_factory=list)
    claims_title: str = "Claims and the checks behind them"
    claims: list[dict[str, Any]] = field(default_factory=list)
    checks: list[CheckRow] = field(default_factory=list)
    premises: list[CheckRow] = field(default_factory=list)
    """Checks on which no claim rests: premises of a theorem before training, and bounds that are no statement about this run."""
    phases: list[Section] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    overview: list[Display] = field(default_factory=list)
    glances: list[Glance] = field(default_factory=list)
    glance_note: str = ""
    panels: list[Panel] = field(default_factory=list)
    heads_left_out: int = 0
    provenance: list[tuple[str, str]] = field(default_factory=list)
    command: str = ""


def solution_page(document: dict[str, Any]) -> Page:
    """The page of a result with schema attnlearn/solution.

    >>> from attnlearn import Outcome, Solution
    >>> solution_page(Solution.failed(Outcome.INTERRUPTED).to_json()).verdict.badge
    'Nothing learned'
    """
    summary = ((document.get("layer") or {}).get("summary")) or {}
    trained = is_trained(document)
    panels, checks = head_panels(document), document["certificate"]["checks"]
    return Page(
        title=_title(document, trained),
        kind="solution",
        verdict=verdict(document),
        outcome=document["outcome"],
        tiles=figures_of_merit(document),
        claims=document["certificate"]["claims"],
        checks=[check_row(check) for check in checks if not _apart(check, trained)],
        premises=[check_row(check) for check in checks if _apart(check, trained)],
        phases=[_phase(document, phase) for phase in document["phases"]],
        sections=extra_sections(document),
        overview=overview(document),
        glances=glances(document),
        glance_note=glance_note(document),
        panels=panels,
        heads_left_out=len(summary.get("maps") or []) - len(panels),
        provenance=_provenance(document),
        command=command(document),
    )


def _title(document: dict[str, Any], trained: bool) -> str:
    """What the page is about; "recovered" only where the outcome says so."""
    if trained:
        return "Trained attention classifier"
    if document["outcome"] == "CERTIFIED" or "candidate" in document["stats"]:
        return "Attention layer beside its reference"
    if document.get("layer") is None:
        return "Attention layer, not found"
    named = {"RECOVERED": "Recovered attention layer", "COMPRESSED": "Compressed attention layer"}
    return named.get(document["outcome"], "Fitted attention layer")


def _apart(check: dict[str, Any], trained: bool) -> bool:
    """Whether a check of a training run is shown apart, because no claim rests on it."""
    return trained and str(check["code"]).startswith(("A.", "G."))


def check_row(check: dict[str, Any]) -> CheckRow:
    """One check, with the length of its bar.

    >>> row = check_row({"code": "C1.error", "status": "holds", "value": 1e-9, "threshold": 1e-3, "slack": 1e6})
    >>> row.slack, row.bar
    ('1.0 × 10⁶ ×', 100)
    >>> row = check_row({"code": "C3.tokens", "status": "holds", "value": 8, "threshold": 8, "slack": 1.0})
    >>> row.slack, row.bar
    ('exact', 100)
    """
    slack = check.get("slack")
    exact = check["status"] == "holds" and check.get("value") == check.get("threshold") is not None
    bar = 0
    if exact:
        bar = 100  # a count that can be no better
    elif isinstance(slack, int | float) and slack > 0:
        bar = round(100 * min(abs(math.log10(slack)) / 6, 1.0))
    elif check["status"] == "holds" and check.get("value") is not None:
        bar = 100
    return CheckRow(
        check["code"],
        str(check.get("text") or "").rstrip(",;: "),
        check["status"],
        pretty(check.get("value"), 3),
        SIGNS.get(str(check.get("direction")), "") + pretty(check.get("threshold"), 3),
        "exact" if exact else f"{pretty(slack)} ×" if slack is not None else "–",
        str(check.get("unit") or ""),
        max(bar, 2) if check["status"] in ("holds", "fails") else 0,
    )


def _phase(document: dict[str, Any], phase: dict[str, Any]) -> Section:
    return Section(
        phase["name"],
        text=about(phase["name"]),
        displays=[found for found in phase_figures(document, phase) if not lonely(found)],
        facts=facts(phase["evidence"]),
        seconds=phase["seconds"],
        skipped=str(phase["evidence"].get("skipped", "")),
    )


def lonely(display: Display) -> bool:
    """Whether a picture of curves has a single place across, where the numbers say as much.

    >>> from attnlearn.reporting._displays import Series
    >>> lonely(Lines("width", series=(Series("K", [1], [0.3]),)))
    True
    """
    return isinstance(display, Lines) and len({x for one in display.series for x in one.x}) < 2


def _provenance(document: dict[str, Any]) -> list[tuple[str, str]]:
    provenance, layer = document["provenance"], document.get("layer") or {}
    rows = [(name, str(version)) for name, version in (provenance.get("versions") or {}).items()]
    rows += [
        (name, cell(provenance[key]))
        for name, key in (
            ("machine", "machine"),
            ("CPUs", "cpus"),
            ("date", "date"),
            ("peak memory, MB", "peak_memory_mb"),
        )
        if provenance.get(key) is not None
    ]
    if document["stats"].get("seed") is not None:
        rows.append(("seed", cell(document["stats"]["seed"])))
    if layer.get("path"):
        rows += [("weights", layer["path"]), ("SHA-256 of the weights", layer.get("sha256") or "–")]
    return rows


def command(document: dict[str, Any]) -> str:
    """The command that made a result, or the Python call when there was none."""
    known = document["provenance"].get("command")
    if known:
        return str(known)
    stats = document["stats"]
    if "method" in stats:
        return f"attnlearn.recover(x, y, method={stats['method']!r}, seed={stats.get('seed', 0)})"
    if "sequences" in stats:
        return f"attnlearn.extract(oracle, dim, seed={stats.get('seed', 0)})"
    return ""
