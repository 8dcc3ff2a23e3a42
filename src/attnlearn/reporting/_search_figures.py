"""Pictures of the wide search: where its starts ended, how the residual fell, and what dropping heads costs."""

from __future__ import annotations

from typing import Any

from attnlearn.reporting._displays import Bars, Display, Lines, Series

SHOWN_STARTS = 6
"""Curves drawn at once: as many as there are line colours."""


def starts(evidence: dict[str, Any], document: dict[str, Any]) -> Display | None:
    """Errors of every start, with all its heads and without the needless ones; bars where there is one start alone."""
    tried = evidence["starts"]
    if len(tried) == 1:
        return _only_start(tried[0])
    numbers = list(range(1, len(tried) + 1))
    widths = ", ".join(str(entry["heads"]) for entry in tried)
    return Lines(
        "Starts of the wide search",
        f"Error on examples kept apart, with all heads of a start ({widths} heads) and without the needless ones.",
        series=(
            Series("all heads", numbers, [entry["select_error"] for entry in tried]),
            Series("without needless heads", numbers, [entry.get("left_error") for entry in tried]),
        ),
        x_label="start",
        y_label="relative error",
        log_y=True,
    )


def _only_start(entry: dict[str, Any]) -> Display:
    shown = [(f"{entry['heads']} heads", entry["select_error"])]
    if entry.get("left") is not None:
        shown.append((f"{entry['left']} kept", entry.get("left_error")))
    return Bars(
        "The first start was enough",
        f"Error on examples kept apart, with all {entry['heads']} heads of the start and without the needless ones.",
        labels=tuple(name for name, _ in shown),
        values=tuple(value for _, value in shown),
        x_label="heads",
        y_label="relative error",
        log=True,
    )


def descent(evidence: dict[str, Any], document: dict[str, Any]) -> Display | None:
    """The residual after every step of every start."""
    known = [(i, entry) for i, entry in enumerate(evidence["starts"], 1) if entry.get("residuals")]
    if not known:
        return None
    left = len(known) - SHOWN_STARTS
    rest = f" The first {SHOWN_STARTS} of {len(known)} starts are drawn." if left > 0 else ""
    return Lines(
        "Descent of the starts",
        f"Relative residual after every step, with more heads than the layer may have.{rest}",
        series=tuple(
            Series(
                f"start {i} ({entry['heads']} heads)",
                list(range(1, len(entry["residuals"]) + 1)),
                entry["residuals"],
            )
            for i, entry in known[:SHOWN_STARTS]
        ),
        x_label="step",
        y_label="relative residual",
        log_y=True,
    )


def drop_costs(evidence: dict[str, Any], document: dict[str, Any]) -> Display | None:
    """What each further head dropped costs; the heads begin where the cost leaps."""
    known = [entry for entry in evidence["starts"] if entry.get("drop_costs")]
    if not known:
        return None
    entry = known[-1]
    costs = {int(kept): cost for kept, cost in entry["drop_costs"].items()}
    order = sorted(costs, reverse=True)
    kept = f" Kept were {entry['left']}." if entry.get("left") is not None else ""
    return Lines(
        "What dropping heads costs",
        f"Relative error when only so many of the {entry['heads']} heads are kept and the others' W are fitted again: it leaps "
        f"where a head is needed.{kept}",
        series=(Series("error", order, [costs[key] for key in order]),),
        x_label="heads kept",
        y_label="relative error",
        log_y=True,
    )
