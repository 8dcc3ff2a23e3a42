"""Two results side by side: verdicts, figures, checks, time, and heads that belong together.

Heads are matched by the maps that the results hold, which are averaged for display: good enough to see which head is which. `distance`
compares the weights themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from attnlearn._numbers import pretty, seconds
from attnlearn._verdict import Verdict, verdict
from attnlearn.reporting._displays import Bars, Display, Lines, Series
from attnlearn.reporting._heatmap import Heatmap
from attnlearn.reporting._page import Page, command
from attnlearn.reporting._sections import Section
from attnlearn.reporting._tiles import figures_of_merit

NAMES = ("A", "B")


def comparison_page(first: dict[str, Any], second: dict[str, Any]) -> Page:
    """The page of two results.

    >>> from attnlearn import Outcome, Solution
    >>> one = Solution.failed(Outcome.SATURATED).to_json()
    >>> comparison_page(one, one).title
    'Two results side by side'
    """
    both = (first, second)
    told = [verdict(document) for document in both]
    tones = {found.tone for found in told}
    return Page(
        title="Two results side by side",
        kind="comparison",
        verdict=Verdict(
            "good" if tones == {"good"} else "bad" if tones == {"bad"} else "partial",
            " and ".join(f"{name}: {found.badge.lower()}" for name, found in zip(NAMES, told)),
            _headline(both),
            scope="A comparison of two results; what is established stands in each of them.",
        ),
        sections=[
            section
            for section in (_verdicts(told), _figures(both), _checks(both), _course(both), _heads(both))
            if section
        ],
        provenance=[(f"{name}: made by", command(document) or "–") for name, document in zip(NAMES, both)],
    )


def _headline(both: tuple[dict[str, Any], ...]) -> str:
    heads, times = [_heads_of(document) for document in both], [_seconds(document) for document in both]
    told = f"A has {heads[0]} heads and B {heads[1]}; A took {seconds(times[0])} and B {seconds(times[1])}."
    errors = [_error(document) for document in both]
    if None not in errors:
        told += f" Their errors on certify examples are at most {pretty(errors[0])} and {pretty(errors[1])}."
    return told


def _verdicts(told: list[Verdict]) -> Section:
    rows = [[name, found.badge, found.text] for name, found in zip(NAMES, told)]
    return Section("Verdicts", rows=(["", "", "verdict"], rows))


def _figures(both: tuple[dict[str, Any], ...]) -> Section:
    """Every figure of merit that either result has."""
    rows = [
        {
            name: f"{number} {f'({remark})' if remark else ''}".strip()
            for number, name, remark in figures_of_merit(d)
        }
        for d in both
    ]
    names = list(dict.fromkeys([*rows[0], *rows[1]]))
    columns = ["", *NAMES]
    return Section(
        "Figures", rows=(columns, [[name, *(row.get(name, "–") for row in rows)] for name in names])
    )


def _checks(both: tuple[dict[str, Any], ...]) -> Section | None:
    """Every check of either result, with both values."""
    found = [{check["code"]: check for check in document["certificate"]["checks"]} for document in both]
    codes = list(dict.fromkeys([*found[0], *found[1]]))
    if not codes:
        return None
    rows = []
    for code in codes:
        known = [checks.get(code) for checks in found]
        text = next(str(check.get("text") or "") for check in known if check).rstrip(",;: ")
        cells = [f"{pretty(check.get('value'), 3)} ({check['status']})" if check else "–" for check in known]
        rows.append([code, text, *cells])
    return Section("Checks", rows=(["check", "what was measured", *NAMES], rows))


def _course(both: tuple[dict[str, Any], ...]) -> Section | None:
    """Time by phase, and the residual of the last refinement of each."""
    names = list(
        dict.fromkeys(p["name"] for d in both for p in d["phases"] if "skipped" not in p["evidence"])
    )
    if not names:
        return None
    displays: list[Display] = []
    for name, document in zip(NAMES, both):
        spent = {key: sum(p["seconds"] for p in document["phases"] if p["name"] == key) for key in names}
        displays.append(
            Bars(
                f"Time of {name} by phase",
                f"{seconds(_seconds(document))} in all.",
                labels=tuple(names),
                values=tuple(spent.values()),
                x_label="phase",
                y_label="seconds",
            )
        )
    curves = [(name, _residuals(document)) for name, document in zip(NAMES, both)]
    if any(values for _, values in curves):
        displays.append(
            Lines(
                "Refinement",
                "Relative residual after every step of the last fit.",
                series=tuple(Series(name, list(range(1, len(v) + 1)), v) for name, v in curves if v),
                x_label="step",
                y_label="relative residual",
                log_y=True,
            )
        )
    return Section("How it went", displays=displays)


def _heads(both: tuple[dict[str, Any], ...]) -> Section | None:
    """Cosines of the heads of A and B, in the order in which they belong together."""
    maps = [((document.get("layer") or {}).get("summary") or {}).get("maps") or [] for document in both]
    shapes = [{np.shape(entry["theta"]) for entry in found} for found in maps]
    if not maps[0] or not maps[1] or shapes[0] != shapes[1]:
        return None
    cosines = _cosines(*([np.array(entry["theta"], float) for entry in found] for found in maps))
    rows, columns = linear_sum_assignment(-cosines)
    pairs = sorted(zip(rows.tolist(), columns.tolist()), key=lambda pair: -cosines[pair])
    return Section(
        "Heads that belong together",
        "Cosine between the Θ of the heads of both, from the maps in the results.",
        displays=[
            Heatmap(
                "Heads of A against heads of B",
                "Cosine of Θ: 1 for the same head.",
                matrix=cosines,
                x_label="head of B",
                y_label="head of A",
            )
        ],
        facts=[(f"head {i} of A", f"head {j} of B, cosine {cosines[i, j]:.4f}") for i, j in pairs],
    )


def _cosines(one: list[np.ndarray], other: list[np.ndarray]) -> np.ndarray:
    flat = [np.stack(found).reshape(len(found), -1) for found in (one, other)]
    unit = [rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300) for rows in flat]
    return unit[0] @ unit[1].T


def _heads_of(document: dict[str, Any]) -> str:
    shapes = (document.get("layer") or {}).get("shapes") or {}
    first = shapes.get("theta") or shapes.get("w")
    return str(first[0]) if first else "no"


def _seconds(document: dict[str, Any]) -> float:
    return float(sum(phase["seconds"] for phase in document["phases"]))


def _error(document: dict[str, Any]) -> float | None:
    claims = {claim["code"]: claim.get("value") for claim in document["certificate"]["claims"]}
    value = claims.get("C1")
    return value.get("error") if isinstance(value, dict) else None


def _residuals(document: dict[str, Any]) -> list[float]:
    steps = [
        phase["evidence"]["steps"]
        for phase in document["phases"]
        if isinstance(phase["evidence"].get("steps"), list)
    ]
    return [step["residual"] for step in steps[-1]] if steps else []
