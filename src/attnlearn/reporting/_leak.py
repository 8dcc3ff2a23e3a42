"""The page of `leak`: what answers give away after how many queries, under which defence.

A leak has no certificate: its verdict states what was measured and that nothing is proved about other attacks.
"""

from __future__ import annotations

from typing import Any

from attnlearn._numbers import cell, pretty
from attnlearn._verdict import Verdict
from attnlearn.reporting._displays import Bars, Display, Lines, Series, drawable
from attnlearn.reporting._page import Page
from attnlearn.reporting._sections import Section, provenance_rows

GIVEN_AWAY = 1e-3
"""Output error below which a copy answers like the original for most uses: the same limit as claim C1's check."""


def leak_page(document: dict[str, Any]) -> Page:
    """Error against queries, one curve per defence.

    >>> rows = [{"decimals": None, "noise": 0.0, "phase": "polish", "sequences": 260, "error": 2e-16}]
    >>> leak_page({"rows": rows}).verdict.sentence
    'Answers as they are give the layer away: 260 queries leave an output error of 2.0 × 10⁻¹⁶.'
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        groups.setdefault(_setting(row), []).append(row)
    rows = [
        (f"{name}, after {row['phase']}", f"{row['sequences']} sequences, error {cell(row.get('error'))}")
        for name, entries in groups.items()
        for row in entries
    ]
    return Page(
        title="What the answers give away",
        kind="leak",
        verdict=_leak_verdict(groups),
        tiles=[
            (pretty(entries[-1].get("error")), name, f"after {pretty(entries[-1]['sequences'])} queries")
            for name, entries in groups.items()
        ],
        sections=[Section("Error against queries", displays=_curves(groups), facts=rows)],
        provenance=provenance_rows(document),
        command=str((document.get("provenance") or {}).get("command") or ""),
    )


def _curves(groups: dict[str, list[dict[str, Any]]]) -> list[Display]:
    """Output and parameter error against queries, and where each defence ends."""
    curves: list[Display] = [
        Lines(
            title,
            "Error of the copy's outputs on random inputs; 1 means that nothing is known.",
            series=tuple(
                Series(name, [r["sequences"] for r in rows], [r.get(kind) for r in rows])
                for name, rows in groups.items()
            ),
            x_label="sequences asked",
            y_label="relative error",
            log_y=True,
        )
        for title, kind in (
            ("Error against queries", "error"),
            ("Parameter error against queries", "parameter_error"),
        )
        if any(drawable(row.get(kind), True) for rows in groups.values() for row in rows)
    ]
    curves.append(
        Bars(
            "Where each defence ends",
            "Error of the copy after the last phase: the higher, the less was given away.",
            labels=tuple(groups),
            values=tuple(rows[-1].get("error") for rows in groups.values()),
            x_label="answers",
            y_label="relative error",
            floor=1.0,
            floor_label="nothing known",
            log=True,
        )
    )
    return curves


def _setting(row: dict[str, Any]) -> str:
    digits = "as they are" if row.get("decimals") is None else f"{row['decimals']} decimals"
    return digits + (f", noise {row['noise']:g}" if row.get("noise") else "")


def _leak_verdict(groups: dict[str, list[dict[str, Any]]]) -> Verdict:
    scope = (
        "Measured with this package's attack only: a better attack may get further, so a large error is no proof of "
        "safety."
    )
    if not groups:
        return Verdict("bad", "Nothing measured", "No setting was measured.", scope=scope)
    ends = {name: rows[-1] for name, rows in groups.items()}
    name, row = next(iter(ends.items()))
    known = drawable(row.get("error"), False) and row["error"] <= GIVEN_AWAY
    told = (
        f"Answers {name} {'give the layer away' if known else 'do not give the whole layer away to this attack'}: "
        f"{pretty(row['sequences'])} queries leave an output error of {pretty(row.get('error'))}."
    )
    rest = {key: end for key, end in ends.items() if key != name and drawable(end.get("error"), False)}
    if rest:
        best, end = max(rest.items(), key=lambda item: item[1]["error"])
        told += f" The strongest defence tried ({best}) leaves {pretty(end['error'])}."
    tone = "bad" if known else "partial"
    return Verdict(tone, "Given away" if known else "Measured", told, scope=scope)
