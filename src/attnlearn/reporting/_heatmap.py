"""A matrix in colour, with ticks, names of tokens where they are known, and a colour bar."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from attnlearn._numbers import pretty
from attnlearn.reporting._axes import Scale, picture
from attnlearn.reporting._displays import Display, Table, axes_of
from attnlearn.reporting._png import data_uri

SIDE = 240.0
"""Longest side of a map, in units of the picture."""

MOST_NAMES = 24
"""Names of rows or columns that have room beside a map; of more, every second or third is written."""

NAME_LENGTH = 10
"""Letters of a token's name that are written; the rest shows under the pointer."""

LETTER = 7.4
"""Room for a letter of a tick label, in units of the picture."""

FLAT = 0.4
"""Shares that all lie above this part of the largest are coloured from the smallest on: from 0 they would all look the same."""


@dataclass(frozen=True)
class Heatmap(Display):
    """A matrix in colour: warm above zero, cool below; shares (never negative) in one colour.

    `source` names where in the result's JSON the matrix stands, so that the page reads numbers from there. `extent` is the size of
    the matrix before it was averaged for display. `words` names the tokens of rows and columns, and `words_source` where they stand.

    >>> Heatmap("QK", matrix=np.eye(2)).table()
    (['', '0', '1'], [[0, 1.0, 0.0], [1, 0.0, 1.0]])
    """

    matrix: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    x_label: str = ""
    y_label: str = ""
    signed: bool = True
    source: str = ""
    names: str = ""
    extent: tuple[int, int] | None = None
    words: tuple[str, ...] = ()
    words_source: str = ""

    @property
    def range(self) -> tuple[float, float]:
        """The values at both ends of the colour bar.

        >>> Heatmap("shares", matrix=np.array([[0.3, 0.25]]), signed=False).range
        (0.25, 0.3)
        """
        values = self.matrix[np.isfinite(self.matrix)]
        most = float(np.abs(values).max()) if values.size else 0.0
        if self.signed:
            return -most, most
        least = float(values.min()) if values.size else 0.0
        return (least if FLAT * most < least < most else 0.0), most

    def svg(self) -> str:
        """The picture: the matrix as an image in its frame, ticks or names, axis names and the colour bar."""
        rows, columns = self.matrix.shape
        longest = max(rows, columns, 1)
        wide, tall = (max(SIDE * size / longest, 14.0) for size in (columns, rows))
        letters = max((len(name[:NAME_LENGTH]) for name in self.words), default=len(str(self._size[0])))
        margin, below = 26.0 + LETTER * letters, 26.0 + LETTER * letters if self.words else 34.0
        left, top = margin, 8.0
        body = self._cells(left, top, wide, tall) + self._ticks(left, top, wide, tall)
        middle = top + tall / 2
        body += (
            f'<text class="name middle" x="{left + wide / 2:.2f}" y="{top + tall + below - 2:.2f}">{escape(self.x_label)}</text>'
            f'<text class="name middle" x="12" y="{middle:.2f}" transform="rotate(-90 12 {middle:.2f})">{escape(self.y_label)}</text>'
        )
        body += self._bar(left + wide + 12, top, max(tall, 60.0))
        return picture(
            body, self.title, width=left + wide + 74, height=max(top + tall + below + 4, top + 60.0 + 12)
        )

    @property
    def _size(self) -> tuple[int, int]:
        return self.extent or (self.matrix.shape[0], self.matrix.shape[1])

    def _cells(self, left: float, top: float, wide: float, tall: float) -> str:
        rows, columns = self.matrix.shape
        low = self.range[0]
        href = data_uri(self.matrix if self.signed else self.matrix - low, signed=self.signed)
        extent = f'data-high="{self._size[0]}" data-wide="{self._size[1]}" data-words="{escape(self.words_source)}"'
        return (
            f'<rect class="paper" x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{tall:.2f}"/>'
            f'<image class="cells" x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{tall:.2f}" '
            f'preserveAspectRatio="none" href="{href}" data-source="{escape(self.source)}" '
            f'data-rows="{rows}" data-columns="{columns}" data-names="{escape(self.names)}" {extent}/>'
        )

    def _ticks(self, left: float, top: float, wide: float, tall: float) -> str:
        """Numbers, or names where tokens have them, in the middle of their cells."""
        high, across = self._size
        body = ""
        for value in places(high, len(self.words)):
            at = top + tall * (value + 0.5) / high
            body += f'<text class="tick end" x="{left - 5:.2f}" y="{at + 4:.2f}">{escape(self._name(value))}</text>'
        for value in places(across, len(self.words)):
            at, y = left + wide * (value + 0.5) / across, top + tall + 14
            turn = f' transform="rotate(-90 {at + 4:.2f} {y - 8:.2f})"' if self.words else ""
            kind = "tick end" if self.words else "tick middle"
            place = (at + 4, y - 8) if self.words else (at, y)
            body += f'<text class="{kind}" x="{place[0]:.2f}" y="{place[1]:.2f}"{turn}>{escape(self._name(value))}</text>'
        return body

    def _name(self, value: int) -> str:
        if not self.words:
            return str(value)
        name = self.words[value] if value < len(self.words) else ""
        return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"

    def _bar(self, left: float, top: float, tall: float) -> str:
        """The colour bar with its values at both ends, and 0 in the middle where there are two colours."""
        low, high = self.range
        ramp = np.linspace(high, low, 64)[:, None]
        href = data_uri(ramp if self.signed else ramp - low, signed=self.signed)
        body = (
            f'<rect class="paper" x="{left:.2f}" y="{top}" width="10" height="{tall:.2f}"/>'
            f'<image class="key" x="{left:.2f}" y="{top}" width="10" height="{tall:.2f}" preserveAspectRatio="none" href="{href}"/>'
        )
        marks = [(high, top + 9), (low, top + tall)] + ([(0.0, top + tall / 2 + 4)] if self.signed else [])
        for value, at in marks:
            body += f'<text class="scale" x="{left + 14:.2f}" y="{at:.2f}">{escape(pretty(value, 2))}</text>'
        return body

    def plot(self, ax: Any = None) -> Any:
        """The picture in matplotlib; returns the axes (needs the extra `report`)."""
        ax = axes_of(ax)
        low, high = self.range
        style = {"cmap": "RdBu_r" if self.signed else "Blues", "vmin": low, "vmax": high or 1.0}
        ax.figure.colorbar(ax.imshow(self.matrix, **style), ax=ax)
        ax.set(xlabel=self.x_label, ylabel=self.y_label, title=self.title)
        if self.words:
            ax.set(xticks=range(len(self.words)), yticks=range(len(self.words)))
            ax.set_xticklabels(self.words, rotation=90)
            ax.set_yticklabels(self.words)
        return ax

    def table(self) -> Table:
        """The matrix with the numbers of its rows and columns, or the names of its tokens."""
        rows, columns = self.matrix.shape
        named = len(self.words) >= max(rows, columns)
        heads = self.words[:columns] if named else tuple(map(str, range(columns)))
        return ["", *heads], [
            [self.words[i] if named else i, *map(float, self.matrix[i])] for i in range(rows)
        ]


def places(size: int, names: int = 0) -> list[int]:
    """Rows or columns that get a tick: round numbers, or as many names as have room.

    >>> places(128), places(3), places(48, names=48)[:3]
    ([0, 50, 100], [0, 1, 2], [0, 2, 4])
    """
    if names:
        stride = -(-min(size, names) // MOST_NAMES)
        return list(range(0, min(size, names), stride))
    if size <= 10:
        return list(range(size))
    step = max(int(Scale(0.0, float(size), 0.0, 1.0).ticks(5)[1]), 1)
    return list(range(0, size, step))
