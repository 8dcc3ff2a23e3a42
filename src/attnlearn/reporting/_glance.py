"""All heads at a glance: the mean pattern of each, its share of the output, and whether it copies tokens."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from attnlearn.reporting._heatmap import Heatmap
from attnlearn.reporting._png import data_uri


@dataclass(frozen=True)
class Glance:
    """One head in the overview: its name, its mean pattern and a line or two of figures."""

    name: str
    pattern: np.ndarray
    figures: tuple[str, ...]

    def svg(self) -> str:
        """The pattern as a small square picture on its own scale."""
        low = Heatmap(self.name, matrix=self.pattern, signed=False).range[0]
        href = data_uri(self.pattern - low, signed=False)
        return (
            f'<svg viewBox="0 0 64 64" role="img" aria-label="{escape(self.name)}: mean pattern">'
            f'<rect class="paper" width="64" height="64"/><image class="key" width="64" height="64" '
            f'preserveAspectRatio="none" href="{href}"/></svg>'
        )


def glances(document: dict[str, Any]) -> list[Glance]:
    """The overview of a layer's heads; empty where a result has no patterns.

    >>> from attnlearn import AttentionLayer, Outcome, Solution
    >>> found = glances(Solution(AttentionLayer.random(2, 4), Outcome.RECOVERED).to_json())
    >>> [glance.name for glance in found], found[0].figures[0].endswith("% of the output")
    (['Head 0', 'Head 1'], True)
    """
    summary = ((document.get("layer") or {}).get("summary")) or {}
    attended = (summary.get("attention") or {}).get("heads") or []
    heads = summary.get("heads") or []
    found = []
    for index, entry in enumerate(attended):
        figures = []
        if entry.get("share") is not None:
            figures.append(f"{100 * entry['share']:.0f} % of the output")
        copying = heads[index].get("copying") if index < len(heads) else None
        if copying is not None:
            figures.append(f"copying {copying:+.2f}".replace("-", "−"))
        figures.append(f"{entry['effective_tokens']:.1f} tokens")
        found.append(Glance(f"Head {index}", np.array(entry["mean"], float), tuple(figures)))
    return found


def glance_note(document: dict[str, Any]) -> str:
    """What the overview shows, in words; only what it does show."""
    attention = (((document.get("layer") or {}).get("summary")) or {}).get("attention") or {}
    if not attention.get("heads"):
        return ""
    note = (
        f"Mean attention pattern of every head over {attention['inputs']} {attention['source']}: rows are queries, columns are keys, "
        "each picture has its own scale. Click one to see the head."
    )
    if attention["heads"][0].get("share") is not None:
        note += (
            " The shares of the output add up to 100 %; a head that works against the others has a negative one. Copying is the sum of "
            "W's eigenvalues over the sum of their sizes: +1 passes a token on as it is, −1 takes it away."
        )
    return note
