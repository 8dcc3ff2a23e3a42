"""The answer beside the true layer: errors by head, and entries found against true."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._canonical import Support, on_support
from attnlearn._distance import distance
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer

MOST_POINTS = 300
"""Entries of each matrix that are drawn, evenly spread over all of them."""


def beside_truth(layer: Any, truth: Any, support: Any = None) -> dict[str, Any]:
    """How far `layer` is from `truth`, for display: `stats["truth"]` of a report.

    `support` limits the comparison to what the tokens can show.

    >>> layer = AttentionLayer.random(2, 4)
    >>> found = beside_truth(layer, layer)
    >>> found["theta"], len(found["heads"]), found["points"]["w"][0][0] == found["points"]["w"][0][1]
    (0.0, 2, True)
    """
    for name, given in (("solution_or_path", layer), ("truth", truth)):
        require(isinstance(given, AttentionLayer), name, "must have an AttentionLayer to compare", given)
    support = support if isinstance(support, Support) else None
    apart = distance(layer, truth, support=support)
    if support is not None:
        layer, truth = on_support(layer, support), on_support(truth, support)
    layer, truth = layer.canonical(), truth.canonical()
    pairs = [(match.head, match.other) for match in apart.heads]
    matched = [(i, j) for i, j in pairs if i is not None and j is not None]
    points = {
        name: _points([stack[0][i] for i, _ in matched], [stack[1][j] for _, j in matched])
        for name, stack in {
            "theta": (layer.scores_at(0).theta, truth.scores_at(0).theta),
            "w": (layer.w, truth.w),
        }.items()
    }
    return {
        "theta": apart.theta,
        "w": apart.w,
        "query_bias": apart.query_bias,
        "output_bias": apart.output_bias,
        "heads": [{"head": m.head, "other": m.other, "theta": m.theta, "w": m.w} for m in apart.heads],
        "points": points,
        "diagonal": {
            name: [min(p[0] for p in found), max(p[0] for p in found)] if found else []
            for name, found in points.items()
        },
    }


def _points(found: list[np.ndarray], true: list[np.ndarray]) -> list[list[float]]:
    """Pairs (true, found) of some entries."""
    if not found:
        return []
    flat, wanted = np.stack(found).reshape(-1), np.stack(true).reshape(-1)
    chosen = np.unique(np.linspace(0, len(flat) - 1, MOST_POINTS).astype(int))
    return [[float(f"{wanted[i]:.6g}"), float(f"{flat[i]:.6g}")] for i in chosen]
