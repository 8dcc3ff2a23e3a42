"""Pages of `conditions` and of any other command: checks and figures as tables, with the advice on top."""

from __future__ import annotations

from typing import Any

from attnlearn._numbers import cell, pretty
from attnlearn._verdict import Verdict
from attnlearn.reporting._page import Page, check_row
from attnlearn.reporting._sections import Section, facts, provenance_rows


def conditions_page(document: dict[str, Any]) -> Page:
    """Whether a layer can be learned, by which route, and from how much.

    >>> advice = {"route": "recover", "text": "use recover", "routes": []}
    >>> document = {"schema": "attnlearn/conditions", "checks": [], "figures": {}, "advice": advice}
    >>> conditions_page(document).verdict.sentence
    'Use recover.'
    """
    advice = document["advice"]
    text = str(advice["text"]).strip().rstrip(".")
    routes = [_route(entry) for entry in advice.get("routes") or ()]
    return Page(
        title="Conditions for learning",
        kind="conditions",
        verdict=Verdict(
            "good" if advice.get("route") else "bad",
            f"Route: {advice['route']}" if advice.get("route") else "No route",
            f"{text[:1].upper()}{text[1:]}.",
            scope="Conditions are measured on these tokens; they are advice, not a certificate.",
        ),
        checks=[check_row(check) for check in document["checks"]],
        claims_title="Routes, and the conditions behind them",
        claims=routes,
        sections=[Section("Figures", facts=facts(document.get("figures") or {}))],
        provenance=provenance_rows(document),
        command=str((document.get("provenance") or {}).get("command") or ""),
    )


def _route(entry: dict[str, Any]) -> dict[str, Any]:
    """One route as a card: whether it should work, from how much, or why not."""
    feasible = entry.get("feasible")
    status = "not known" if feasible is None else "should work" if feasible else "will not work"
    needed = entry.get("needed")
    unit = "queries" if entry.get("route") == "extract" else "examples"
    text = str(entry.get("reason") or "")
    if feasible and needed is not None:
        text = f"about {pretty(round(needed))} {unit}" + (f"; {text}" if text else "")
    return {
        "code": str(entry.get("route", "")),
        "established": bool(feasible),
        "status": status,
        "text": text,
    }


def other_page(document: dict[str, Any]) -> Page:
    """Any other result of a command: its figures as a table."""
    name = str(document.get("schema", "")).removeprefix("attnlearn/") or "result"
    shown = {
        k: v for k, v in document.items() if k not in ("schema", "version", "provenance", "advice", "verdict")
    }
    advice = document.get("advice")
    told = str(
        document.get("verdict") or (advice[0] if isinstance(advice, list) and advice else advice) or ""
    )
    return Page(
        title=name.capitalize(),
        kind=name,
        verdict=Verdict(
            "partial",
            "Measured",
            told or f"The figures that attnlearn {name} measured.",
            scope="Measured figures; nothing is certified here.",
        ),
        sections=[*_tables(shown), Section("Figures", facts=facts(shown))],
        provenance=provenance_rows(document),
        command=str((document.get("provenance") or {}).get("command") or ""),
    )


def _tables(values: dict[str, Any]) -> list[Section]:
    """Lists of alike entries as tables.

    >>> [table] = _tables({"rows": [{"name": "moment", "runs": "yes"}, {"name": "fit", "runs": "no"}]})
    >>> table.rows
    (['name', 'runs'], [['moment', 'yes'], ['fit', 'no']])
    """
    found = []
    for name, entries in values.items():
        if isinstance(entries, list) and entries and all(isinstance(entry, dict) for entry in entries):
            columns = list(entries[0])
            cells = [[cell(entry.get(column)) for column in columns] for entry in entries]
            title = "What would run" if name == "rows" else name
            found.append(Section(title, rows=([column.replace("_", " ") for column in columns], cells)))
    return found
