"""The pictures of a report: curves, and bars against a floor (maps have their own file).

Every display holds plain numbers and gives them in three ways: `svg()` for the page, `plot()` for matplotlib and papers
(extra `report`), `frame()` as a pandas table (extra `report`); `table()` is the same table without pandas. Values that
are None or not finite are left out of the picture and shown as a dash in the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from attnlearn._numbers import pretty
from attnlearn.reporting._axes import BOTTOM, HEIGHT, LEFT, RIGHT, ROW, TOP, WIDTH, Scale, frame, picture
from attnlearn.reporting._curves import COLOURS, Series, curve, drawable, labelled_one_by_one, legend, level

LOG_FROM = 20.0
"""Bars are drawn on a logarithmic axis, where that was asked for, only when they differ by more than this factor."""

LINE = 44
"""Letters of names that fit below the bars; up to twice as many stand in two rows."""

Table = tuple[list[str], list[list[Any]]]


@dataclass(frozen=True)
class Display:
    """What all displays share: a title, a sentence that says what to look for, and the three views."""

    title: str
    note: str = ""

    def table(self) -> Table:
        """Column names and rows."""
        raise NotImplementedError

    def plot(self, ax: Any = None) -> Any:
        """The picture in matplotlib; returns the axes (needs the extra `report`)."""
        raise NotImplementedError

    def frame(self):
        """The numbers as a pandas data frame (needs the extra `report`)."""
        import pandas as pd

        columns, rows = self.table()
        return pd.DataFrame(rows, columns=columns)


@dataclass(frozen=True)
class Lines(Display):
    """Curves, with horizontal levels (a noise floor, a bound) drawn dashed.

    >>> display = Lines("loss", series=(Series("loss", [0, 1], [1.0, 0.1]),), log_y=True)
    >>> display.svg().startswith("<svg"), display.table()[1]
    (True, [[0, 1.0], [1, 0.1]])
    """

    series: tuple[Series, ...] = ()
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    levels: tuple[tuple[str, float], ...] = ()

    def svg(self) -> str:
        """The picture."""
        lines = [(one, one.points(self.log_y)) for one in self.series]
        levels = [(label, value) for label, value in self.levels if drawable(value, self.log_y)]
        across = [x for _, points in lines for x, _ in points if drawable(x, self.log_x)]
        along = [y for _, points in lines for _, y in points] + [value for _, value in levels]
        along += [y for one in self.series for _, *ends in one.whiskers(self.log_y) for y in ends]
        x = Scale.fit(across or [0.0, 1.0], LEFT, WIDTH - RIGHT, log=self.log_x)
        y = Scale.fit(along or [0.0, 1.0], HEIGHT - BOTTOM, TOP, log=self.log_y)
        ticks = [(v, f"{v:g}") for v in sorted(set(across))] if labelled_one_by_one(across, x) else ()
        body = frame(x, y, self.x_label, self.y_label, x_ticks=ticks)
        for label, value in levels:
            body += level(label, y(value))
        for number, (one, points) in enumerate(lines):
            shown = [(x(a), y(b), a, b) for a, b in points if drawable(a, self.log_x)]
            body += curve(one, number % COLOURS, shown)
            for a, low, high in one.whiskers(self.log_y):
                at = f'x1="{x(a)}" x2="{x(a)}" y1="{y(low)}" y2="{y(high)}"'
                body += f'<line class="curve c{number % COLOURS}" {at}/>'
        names, above = legend(self.series)
        return picture(names + body, self.title, above=above)

    def plot(self, ax: Any = None) -> Any:
        """The picture in matplotlib; returns the axes (needs the extra `report`)."""
        ax = axes_of(ax)
        for one in self.series:
            points = one.points(self.log_y) or [(math.nan, math.nan)]
            (line,) = ax.plot(*zip(*points), "--" if one.bound else "o-", label=one.label, markersize=3)
            for a, low, high in one.whiskers(self.log_y):
                ax.vlines(a, low, high, color=line.get_color())
        for label, value in self.levels:
            ax.axhline(value, linestyle=":", color="black", label=label)
        ax.set(xlabel=self.x_label, ylabel=self.y_label, title=self.title)
        ax.set(xscale="log" if self.log_x else "linear", yscale="log" if self.log_y else "linear")
        ax.legend(fontsize=7)
        return ax

    def table(self) -> Table:
        """One row for each x."""
        xs = sorted({x for one in self.series for x in one.x})
        found = [dict(zip(one.x, one.y)) for one in self.series]
        rows = [[x, *(values.get(x) for values in found), *(v for _, v in self.levels)] for x in xs]
        return [
            self.x_label or "x",
            *(s.label for s in self.series),
            *(label for label, _ in self.levels),
        ], rows


@dataclass(frozen=True)
class Bars(Display):
    """Bars, the first `chosen` of them marked, against a floor.

    >>> display = Bars("gap", labels=("1", "2"), values=(1.0, 0.1), floor=0.2, chosen=1)
    >>> display.table()
    (['', 'value', 'noise floor'], [['1', 1.0, 0.2], ['2', 0.1, 0.2]])
    """

    labels: tuple[str, ...] = ()
    """Names of the bars; 1, 2, ... when there are none."""
    values: tuple[float | None, ...] = ()
    x_label: str = ""
    y_label: str = ""
    floor: float | None = None
    floor_label: str = "noise floor"
    chosen: int | None = None
    log: bool = False

    def __post_init__(self) -> None:
        if not self.labels:
            object.__setattr__(self, "labels", tuple(str(i + 1) for i in range(len(self.values))))

    def svg(self) -> str:
        """The picture."""
        known = [float(value) for value in self.values if drawable(value, self.log)]  # type: ignore[arg-type]
        wide = bool(known) and self.log and max(known) > LOG_FROM * min(known)
        floor = self.floor if drawable(self.floor, self.log) else None
        if floor is not None and known and self.log:
            wide = wide or max(*known, floor) > LOG_FROM * min(*known, floor)
        x = Scale(0.0, max(len(self.values), 1), LEFT, WIDTH - RIGHT)
        y = Scale.fit(
            [*known, *([] if floor is None else [floor])] or [0.0, 1.0],  # type: ignore[list-item]
            HEIGHT - BOTTOM, TOP, log=wide, zero=True,
        )  # fmt: skip
        letters = len(self.labels) * max((len(label) for label in self.labels), default=1)
        rows = 2 if LINE < letters <= 2 * LINE and not self.labels[0].isdigit() else 1
        stride = max(1, math.ceil(letters / (rows * LINE)))
        ticks = [(i + 0.5, label) for i, label in enumerate(self.labels) if i % stride == 0]
        body = frame(x, y, self.x_label, self.y_label, x_ticks=ticks or [(0.5, "")], rows=rows)
        base = HEIGHT - BOTTOM
        for i, (label, value) in enumerate(zip(self.labels, self.values)):
            if not drawable(value, self.log):
                continue
            left, right, top = x(i + 0.14), x(i + 0.86), min(y(value), base - 1)  # type: ignore[arg-type]
            marked = "bar" if self.chosen is None or i < self.chosen else "bar rest"
            tip = escape(f"{label}: {pretty(value, 4)}")
            body += (
                f'<rect class="{marked}" x="{left}" y="{top}" width="{right - left:.2f}" '
                f'height="{base - top:.2f}" rx="1.5" data-tip="{tip}"/>'
            )
        if floor is not None:
            body += level(self.floor_label, y(floor), right=True)
        return picture(body, self.title, height=HEIGHT + (rows - 1) * ROW)

    def plot(self, ax: Any = None) -> Any:
        """The picture in matplotlib; returns the axes (needs the extra `report`)."""
        ax = axes_of(ax)
        ax.bar(self.labels, [np.nan if value is None else value for value in self.values])
        if self.floor is not None:
            ax.axhline(self.floor, linestyle="--", color="black", label=self.floor_label)
            ax.legend(fontsize=7)
        ax.set(
            xlabel=self.x_label, ylabel=self.y_label, title=self.title, yscale="log" if self.log else "linear"
        )
        return ax

    def table(self) -> Table:
        """One row a bar."""
        floor = [] if self.floor is None else [self.floor]
        columns = [self.x_label, self.y_label or "value", *([self.floor_label] if floor else [])]
        return columns, [[label, value, *floor] for label, value in zip(self.labels, self.values)]


def axes_of(ax: Any) -> Any:
    """The axes to draw on: those given, or those of a new figure."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(layout="constrained").subplots()
