"""Sections that only some results have: the diagnosis of a misfit, standard errors, tiers of training, smaller counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn.reporting._displays import Bars, Lines, Series, drawable
from attnlearn.reporting._evidence_figures import truth_section
from attnlearn.reporting._heatmap import Heatmap
from attnlearn.reporting._sections import Section, facts


def extra_sections(document: dict[str, Any]) -> list[Section]:
    """The sections for what `stats` holds beyond the usual.

    >>> stats = {"diagnosis": {"cause": "residual", "evidence": [{"name": "residual", "evidence": 0.9, "text": "X"}]}}
    >>> [section.title for section in extra_sections({"stats": stats})]
    ['Why no attention layer fits']
    """
    found = []
    for make in (_truth, _rival, _diagnosis, _standard_errors, _curve, _tiers):
        try:
            section = make(document["stats"], document)
        except (KeyError, TypeError, ValueError, IndexError):
            continue
        if section is not None:
            found.append(section)
    return found


def _truth(stats: dict[str, Any], document: dict[str, Any]) -> Section | None:
    """The answer beside the truth, where the report was given it."""
    return truth_section(document)


def _rival(stats: dict[str, Any], document: dict[str, Any]) -> Section | None:
    """Both layers with the same outputs, where the second opinion found another one."""
    rival = stats.get("rival")
    if not rival:
        return None
    head = rival["head"] + 1
    return Section(
        "Another layer with the same outputs",
        f"On these tokens the outputs do not tell two layers apart: head {head} can be replaced, and the outputs stay the same to "
        f"{rival['residual']:.2g}. Tokens that are independent of each other would tell.",
        displays=[
            Heatmap(
                f"Θ of head {head}, as found", "Scores of the found layer.", matrix=np.array(rival["found"])
            ),
            Heatmap("Θ in its place", "Scores of the other layer.", matrix=np.array(rival["other"])),
        ],
        facts=[
            ("relative distance of the scores", f"{rival['distance']:.3g}"),
            ("heads of the other layer", str(rival["heads"])),
            ("found by", rival["how"]),
        ],
    )


def _diagnosis(stats: dict[str, Any], document: dict[str, Any]) -> Section | None:
    diagnosis = stats.get("diagnosis")
    if not diagnosis:
        return None
    causes = diagnosis["evidence"]
    told = {entry["name"]: entry["text"] for entry in causes}
    return Section(
        "Why no attention layer fits",
        f"The likeliest cause is “{diagnosis['cause']}”: {told.get(diagnosis['cause'], 'no remark')}.",
        displays=[]
        if len(causes) < 2
        else [
            Bars(
                "Causes, by evidence",
                "Evidence for each cause, between 0 and 1; each is measured in its own way.",
                labels=tuple(entry["name"] for entry in causes),
                values=tuple(entry["evidence"] for entry in causes),
                x_label="cause",
                y_label="evidence",
            )
        ],
        facts=[(entry["name"], entry["text"]) for entry in causes] if len(causes) > 1 else [],
    )


def _standard_errors(stats: dict[str, Any], document: dict[str, Any]) -> Section | None:
    errors = stats.get("standard_errors")
    if not errors:
        return None
    heads = list(range(len(errors["theta"])))
    return Section(
        "How exact the noise allows",
        f"Noise of {errors['noise']:.3g} in the outputs leaves each head uncertain by these standard errors, from the covariance clustered by "
        "sequence. They hold if errors of different sequences are independent; claim C3 has bounds."
        + _carried(stats),
        displays=[
            Lines(
                "Standard errors by head",
                "Expected relative error of Θ and W.",
                series=(Series("Θ", heads, errors["theta"]), Series("W", heads, errors["w"])),
                x_label="head",
                y_label="relative error",
                log_y=True,
            )
        ],
    )


def _carried(stats: dict[str, Any]) -> str:
    """How many sequences carry the uncertainty, where few do."""
    influence = stats.get("influence") or {}
    worst = influence.get("worst") or []
    if not worst:
        return ""
    share = f"{100 * worst[0]['share']:.2g} %"
    return f" The one sequence that matters most carries {share} of it; {influence['carried_by']:.0f} equal ones would carry it all."


def _curve(stats: dict[str, Any], document: dict[str, Any]) -> Section | None:
    """Error against what a token costs, and against the heads where these were counted (compress)."""
    curve = stats.get("curve")
    if not curve:
        return None
    heads = [("heads", "heads kept")] if len({row["heads"] for row in curve}) > 1 else []
    sizes = [size for size in SIZES if size[0] in curve[0]]
    return Section(
        "What every smaller size costs",
        "The error of each size that was fitted, on examples that were not.",
        displays=[_against(curve, key, label) for key, label in [*heads, *sizes]],
    )


SIZES = (("kv_floats", "floats kept for each token"), ("parameters", "parameters"))


def _against(curve: list[dict[str, Any]], key: str, label: str) -> Lines:
    """Errors against one size; where several shapes have the same, all of them, and the best of those that are no larger as a line."""
    rows = sorted(curve, key=lambda row: (row[key], -row["error"]))
    best = [min(other["error"] for other in curve if other[key] <= row[key]) for row in rows]
    series = [Series("best", [row[key] for row in rows], best)]
    for kind, chosen in (("shared keys and values", False), ("one latent", True)):
        own = [row for row in rows if (row.get("latent") is not None) is chosen]
        if own and len(own) < len(rows):
            series.append(Series(kind, [row[key] for row in own], [row["error"] for row in own]))
    return Lines(
        f"Error against {label}",
        "Relative error of the outputs after refitting.",
        series=tuple(series),
        x_label=label,
        y_label="relative error",
        log_y=True,
    )


def _tiers(stats: dict[str, Any], document: dict[str, Any]) -> Section | None:
    tiers = stats.get("tiers")
    if not tiers:
        return None
    checks = document["certificate"]["checks"]
    premises = [
        check["code"] for check in checks if check["code"].startswith("A.") and check["status"] == "fails"
    ]
    a_priori, verified, measured = (
        tiers.get(name) or {} for name in ("a-priori", "run-verified", "measured")
    )
    bars = [
        ("a priori", None if premises else a_priori.get("bound")),
        ("this run", verified.get("bound")),
        ("mean loss", verified.get("measured")),
        ("held out", measured.get("loss")),
    ]
    shown = [(name, value) for name, value in bars if drawable(value, True)]
    missing = f" The a-priori bound does not apply: {', '.join(premises)} fail." if premises else ""
    return Section(
        "Guarantees in three tiers",
        "A priori: before training, from the theorem. Run-verified: what this very run proved. Measured: on examples "
        f"kept apart.{missing}",
        displays=[
            Bars(
                "Bounds beside measurements",
                "Bounds first, then what was measured.",
                labels=tuple(name for name, _ in shown),
                values=tuple(value for _, value in shown),
                x_label="tier",
                y_label="loss",
                chosen=sum(name in ("a priori", "this run") for name, _ in shown),
                log=True,
            )
        ],
        facts=[row for name, tier in tiers.items() for row in facts(tier or {}, f"{name} · ")],
    )
