"""One panel per head: QK and OV maps, spectra, what it attends to; and how similar the heads are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._numbers import pretty
from attnlearn.reporting._displays import Bars, Display, Lines, Series
from attnlearn.reporting._heatmap import Heatmap

NO_POSITIONS = "no positions"
"""What a summary says of scores that depend on the tokens alone."""
MOST_CURVES = 6
"""Heads in one picture of curves: as many as there are colours."""
MOST_PANELS = 48
"""Heads with a panel of their own: more would make the page too long and the file too large."""


@dataclass(frozen=True)
class Panel:
    """What the page shows of one head: its name, facts as (name, value), maps and spectrum, attention."""

    name: str
    facts: list[tuple[str, str]]
    maps: list[Display]
    attention: list[Display]


def head_panels(document: dict[str, Any]) -> list[Panel]:
    """The panels of the heads that the summary of a result describes.

    >>> from attnlearn import AttentionLayer, Outcome, Solution
    >>> panels = head_panels(Solution(AttentionLayer.random(2, 4), Outcome.RECOVERED).to_json())
    >>> [panel.name for panel in panels], [display.title for display in panels[0].maps]
    (['Head 0', 'Head 1'], ['QK map: what is compared', 'OV map: what is passed on', 'Rank spectrum'])
    """
    summary = ((document.get("layer") or {}).get("summary")) or {}
    maps = summary.get("maps") or []
    shown = [entry for entry in maps[:MOST_PANELS] if isinstance(entry, dict)]
    return [_panel(document, summary, i, entry) for i, entry in enumerate(shown)]


def overview(document: dict[str, Any]) -> list[Display]:
    """Displays over all heads: similarity, proved error, breadth of attention, norms; only what is known."""
    summary = ((document.get("layer") or {}).get("summary")) or {}
    curves = _by_offset(summary)
    return [*_similarity(summary), *_bounds(document), *curves, *_breadth(summary), *_norms(summary)]


def _similarity(summary: dict[str, Any]) -> list[Display]:
    similarity = summary.get("similarity")
    if not similarity or len(similarity) < 2:
        return []
    return [
        Heatmap(
            "Similarity of heads",
            "Cosine between the Θ of two heads; the diagonal is 1. Click a cell to see the head of its row.",
            matrix=np.array(similarity, float),
            x_label="head",
            y_label="head",
            source="layer.summary.similarity",
            names="head",
        )
    ]


def _by_offset(summary: dict[str, Any], only: int | None = None) -> list[Display]:
    """Attention by offset of every head, or of one; nothing where positions, windows and masks leave no mark on it."""
    entries = (summary.get("attention") or {}).get("heads") or []
    placed = summary.get("positions", NO_POSITIONS) != NO_POSITIONS or summary.get("window") is not None
    if not placed or any("by_offset" not in entry for entry in entries):
        return []
    heads = range(min(len(entries), MOST_CURVES)) if only is None else [only]
    series = tuple(
        Series(f"head {i}", entries[i]["by_offset"]["offset"], entries[i]["by_offset"]["share"])
        for i in heads
    )
    if not series:
        return []
    cut = f" The first {MOST_CURVES} heads are shown." if only is None and len(entries) > MOST_CURVES else ""
    return [
        Lines(
            "Attention by offset",
            "Mean attention that a query gives the key at each offset, key minus query: 0 is the own token, "
            f"-1 the one before.{cut}",
            series=series,
            x_label="offset",
            y_label="mean attention",
        )
    ]


def _breadth(summary: dict[str, Any]) -> list[Display]:
    attention = summary.get("attention") or {}
    if not attention.get("heads"):
        return []
    return [
        Bars(
            "How widely heads look",
            f"Effective number of the {attention['tokens']} tokens a query attends to: all of them "
            "when attention is uniform, 1 when it is one-hot.",
            labels=tuple(str(i) for i in range(len(attention["heads"]))),
            values=tuple(entry["effective_tokens"] for entry in attention["heads"]),
            x_label="head",
            y_label="effective tokens",
            floor=float(attention["tokens"]),
            floor_label="uniform",
        )
    ]


def _norms(summary: dict[str, Any]) -> list[Display]:
    if not (norms := summary.get("norms")):
        return []
    heads = list(range(len(norms["w"])))
    return [
        Lines(
            "Size of the weights",
            "Frobenius norms of the scores W and of the read-out U of every head.",
            series=(Series("scores W", heads, norms["w"]), Series("read-out U", heads, norms["u"])),
            x_label="head",
            y_label="norm",
        )
    ]


def _bounds(document: dict[str, Any]) -> list[Display]:
    claims = {claim["code"]: claim for claim in document["certificate"]["claims"]}
    value = claims.get("C3", {}).get("value")
    if not isinstance(value, dict) or not value.get("heads"):
        return []
    proved = claims["C3"]["established"]
    return [
        Bars(
            "Error of every head, at most" if proved else "Error of every head: bound not established",
            "Claim C3: relative error of Θ and W, per head.",
            labels=tuple(str(i) for i in range(len(value["heads"]))),
            values=tuple(value["heads"]),
            x_label="head",
            y_label="relative error",
            log=True,
        )
    ]


def _panel(document: dict[str, Any], summary: dict[str, Any], index: int, entry: dict[str, Any]) -> Panel:
    trained = summary.get("kind") == "classifier"
    where = f"layer.summary.maps.{index}"
    displays: list[Display] = [
        Heatmap(
            "Score map: what is compared" if trained else "QK map: what is compared",
            "W, from the query's token (rows) to the key's token (columns)."
            if trained
            else "Θ, from the query's token (rows) to the key's token (columns).",
            matrix=np.array(entry["theta"], float),
            x_label="key coordinate",
            y_label="query coordinate",
            source=f"{where}.theta",
            extent=_extent(document, "w" if trained else "theta"),
        ),
        Heatmap(
            "Read-out map: what is passed on" if trained else "OV map: what is passed on",
            "U, by position (rows) and coordinate (columns)."
            if trained
            else "W, from the attended token (rows) to the output (columns).",
            matrix=np.array(entry["w"], float),
            x_label="coordinate" if trained else "output coordinate",
            y_label="position" if trained else "token coordinate",
            source=f"{where}.w",
            extent=_extent(document, "u" if trained else "w"),
        ),
    ]
    attention = ((summary.get("attention") or {}).get("heads") or [None] * (index + 1))[index]
    attended = _attention(summary["attention"], attention, index) if attention else []
    attended[1:1] = _by_offset(summary, index) if attention else []
    displays.append(_spectrum(entry, trained, min(_extent(document, "theta") or (0, 0))))
    return Panel(f"Head {index}", _facts(summary, index, attention), displays, attended)


def _extent(document: dict[str, Any], name: str) -> tuple[int, int] | None:
    """The size of a head's matrix before it was averaged for display."""
    shape = ((document.get("layer") or {}).get("shapes") or {}).get(name) or ()
    return (int(shape[-2]), int(shape[-1])) if len(shape) == 3 else None


def _spectrum(entry: dict[str, Any], trained: bool, size: int) -> Display:
    theta, w = entry["theta_singular"], entry["w_singular"]
    cut = f" The first {len(theta)} of {size} are shown." if len(theta) < size else ""
    return Lines(
        "Rank spectrum",
        f"Singular values relative to the largest; a cliff shows the rank.{cut}",
        series=(
            Series("scores W" if trained else "Θ (QK)", list(range(1, len(theta) + 1)), _relative(theta)),
            Series("read-out U" if trained else "W (OV)", list(range(1, len(w) + 1)), _relative(w)),
        ),
        x_label="singular value",
        y_label="relative size",
        log_y=True,
    )


def _relative(values: list[float]) -> list[float | None]:
    """Relative to the largest; what is below rounding is noise of the SVD and only stretches the axis."""
    most = max(values, default=0.0) or 1.0
    return [value / most if value / most > 1e-17 else None for value in values]


def _attention(attention: dict[str, Any], entry: dict[str, Any], index: int) -> list[Display]:
    where = f"layer.summary.attention.heads.{index}"
    extent = (
        (attention["tokens"], attention["tokens"]) if len(entry["mean"]) == len(entry["mean"][0]) else None
    )
    words = attention.get("words") or []
    found: list[Display] = [
        Heatmap(
            "What it attends to, on average",
            f"Mean attention over {attention['inputs']} {attention['source']}.",
            matrix=np.array(entry["mean"], float),
            x_label="key position",
            y_label="query position",
            signed=False,
            source=f"{where}.mean",
            extent=extent,
        )
    ]
    for number, sample in enumerate(entry["samples"]):
        named = tuple(words[number]) if number < len(words) else ()
        found.append(
            Heatmap(
                f"On sample input {number + 1}",
                "Each row is one query's attention and sums to 1, less what a sink takes.",
                matrix=np.array(sample, float),
                x_label="key position",
                y_label="query position",
                signed=False,
                source=f"{where}.samples.{number}",
                extent=extent,
                words=named,
                words_source=f"layer.summary.attention.words.{number}" if named else "",
            )
        )
    return found


def _facts(summary: dict[str, Any], index: int, attention: dict[str, Any] | None) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    heads = summary.get("heads") or []
    if index < len(heads):
        head = heads[index]
        facts += [
            ("‖Θ‖", pretty(head["theta_norm"], 3)),
            ("rank of Θ", f"{head['theta_rank']} (effective {head['theta_effective_rank']:.1f})"),
            ("‖W‖", pretty(head["w_norm"], 3)),
            ("rank of W", f"{head['w_rank']} (effective {head['w_effective_rank']:.1f})"),
            ("query bias ‖c‖", pretty(head["query_bias_norm"], 3)),
        ]
        if head["nearest_head"] is not None:
            facts.append(("closest head", f"{head['nearest_head']} (cosine {head['similarity']:.2f})"))
        if head.get("copying") is not None:
            facts.append(("copying score", f"{head['copying']:+.2f}".replace("-", "−")))
    norms = summary.get("norms")
    if norms:
        facts += [("‖W‖", pretty(norms["w"][index], 3)), ("‖U‖", pretty(norms["u"][index], 3))]
    if attention and attention.get("share") is not None:
        facts.append(("share of the output", f"{100 * attention['share']:.1f} %"))
        facts.append(("outputs change without it", f"{100 * attention['ablation']:.0f} %"))
    if attention:
        facts.append(("attends to", f"{attention['effective_tokens']:.1f} tokens, effectively"))
        facts.append(("largest weight", f"{100 * attention['largest']:.0f} % on average"))
        if "own_share" in attention:
            facts.append(("own token", f"{100 * attention['own_share']:.0f} % of attention"))
    return facts
