"""Pieces of a picture as SVG: curves, dashed levels, a legend, and what can be drawn at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from attnlearn._numbers import pretty
from attnlearn.reporting._axes import LEFT, RIGHT, TOP, WIDTH, Scale

COLOURS = 6
"""Line colours of the style sheet; further series repeat them."""


@dataclass(frozen=True)
class Series:
    """One curve: a label and its points.

    >>> Series("loss", [1, 2], [0.5, None]).points(log=False)
    [(1, 0.5)]
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    bound: bool = False
    dots: bool = False
    """Points alone, without a line."""
    spread: Sequence[tuple[float | None, float | None]] = ()
    """The lowest and the highest value at every x, drawn as a vertical line; none when it is left out."""

    def points(self, log: bool) -> list[tuple[float, float]]:
        """Points that can be drawn."""
        return [(a, b) for a, b in zip(self.x, self.y) if drawable(a, False) and drawable(b, log)]  # type: ignore[misc]

    def whiskers(self, log: bool) -> list[tuple[float, float, float]]:
        """x, lowest and highest value, where they can be drawn."""
        return [
            (a, low, high)
            for a, (low, high) in zip(self.x, self.spread)
            if drawable(a, False) and drawable(low, log) and drawable(high, log)
        ]  # type: ignore[misc]


def drawable(value: Any, log: bool) -> bool:
    """Whether a value can stand in a picture.

    >>> drawable(None, False), drawable(0.0, True), drawable(0.0, False)
    (False, False, True)
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return number and (value > 0 or not log)


def labelled_one_by_one(values: list[float], scale: Scale) -> bool:
    """Whether every value can have a tick of its own: whole numbers with room between them."""
    if not all(float(value).is_integer() for value in values):
        return False
    at = sorted({scale(value) for value in values})
    return 0 < len(at) <= 12 and all(b - a >= 24 for a, b in pairwise(at))


def level(label: str, at: float, *, right: bool = False) -> str:
    """A dashed horizontal line with its name."""
    place = f'class="level-name end" x="{WIDTH - RIGHT}"' if right else f'class="level-name" x="{LEFT + 4}"'
    return (
        f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>'
        f'<text {place} y="{at - 6 if at > TOP + 16 else at + 15}">{escape(label)}</text>'
    )


def curve(series: Series, colour: int, points: list[tuple[float, float, float, float]]) -> str:
    """A curve through its points, each with a tip that says where it is."""
    path = " ".join(f"{a},{b}" for a, b, _, _ in points)
    dashed = " bound" if series.bound else ""
    body = "" if series.dots else f'<polyline class="curve c{colour}{dashed}" points="{path}"/>'
    dense = (
        " dense"
        if (len(points) > 40 and not series.dots) or series.bound
        else " small"
        if series.dots
        else ""
    )
    for a, b, x, y in points:
        tip = escape(f"{series.label}: {pretty(y, 4)} at {pretty(x, 4)}")
        body += f'<circle class="point c{colour}{dense}" cx="{a}" cy="{b}" r="3.2" data-tip="{tip}"/>'
    return body


def legend(series: Sequence[Series]) -> tuple[str, float]:
    """The legend above the picture and its height; nothing for a single curve."""
    if len(series) < 2:
        return "", 0.0
    rows: list[list[tuple[float, int, Series]]] = [[]]
    left = float(LEFT)
    for number, one in enumerate(series):
        wide = 36 + 7.8 * len(one.label)
        if rows[-1] and left + wide > WIDTH - RIGHT:
            rows.append([])
            left = float(LEFT)
        rows[-1].append((left, number % COLOURS, one))
        left += wide
    body = ""
    for index, row in enumerate(rows):
        at = -18.0 * (len(rows) - index) + 14
        for left, colour, one in row:
            dashed = " bound" if one.bound else ""
            body += (
                f'<line class="curve c{colour}{dashed}" x1="{left}" x2="{left + 16}" y1="{at - 4}" y2="{at - 4}"/>'
                f'<text class="legend" x="{left + 21}" y="{at}">{escape(one.label)}</text>'
            )
    return body, 18.0 * len(rows)
