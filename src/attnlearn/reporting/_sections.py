"""Parts of a page: a titled section, and nested figures as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnlearn._numbers import cell, pretty
from attnlearn._words import ASKED, EVIDENCE
from attnlearn.reporting._displays import Display

LONGEST = 12
"""Entries of a list that a table of evidence shows; the rest is in the JSON."""


@dataclass(frozen=True)
class Section:
    """A titled part of the page: text, displays, and facts as a table."""

    title: str
    text: str = ""
    displays: list[Display] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    rows: tuple[list[str], list[list[str]]] | None = None
    """A table with named columns."""
    seconds: float | None = None
    skipped: str = ""
    """Why a phase was not run; empty for one that was."""

    @property
    def open(self) -> bool:
        """Whether the table is shown at once: only when it is all there is."""
        return not self.displays


def facts(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested dictionary as rows of a table; long lists are cut, and what is empty or a table of its own is left to the JSON.

    >>> facts({"a": 1, "b": {"c": [1.5, 2.0]}, "d": None})
    [('a', '1'), ('b · c', '1.5, 2')]
    """
    rows: list[tuple[str, str]] = []
    words = EVIDENCE | (ASKED if "scalars" in values else {})
    for name, value in values.items():
        label = f"{prefix}{words.get(name, name)}".replace("_", " ")
        if isinstance(value, dict):
            rows += facts(value, f"{label} · ")
        elif value in (None, []) or (
            isinstance(value, list) and any(isinstance(e, list | dict) for e in value)
        ):
            continue
        elif isinstance(value, list) and len(value) > LONGEST:
            rows.append((label, f"{_shown(value[:LONGEST])}, … ({len(value)} values)"))
        else:
            rows.append((label, _shown(value)))
    return rows


def _shown(value: Any) -> str:
    """A figure with three digits; the JSON has all of them."""
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return pretty(value, 3) if isinstance(value, int | float) and not isinstance(value, bool) else cell(value)


def provenance_rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    """What a result says of its making, without the command, which is shown apart.

    >>> provenance_rows({"provenance": {"cpus": 2, "command": "attnlearn leak"}})
    [('cpus', '2')]
    """
    return [(name, value) for name, value in facts(document.get("provenance") or {}) if name != "command"]
