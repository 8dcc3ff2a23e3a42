"""Scales, ticks and the frame of a figure in SVG. Colours come from the page's style sheet, by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from attnlearn._numbers import power, pretty

WIDTH, HEIGHT = 400, 260
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 14, 46
"""Room for tick labels and axis names at 13 units of text."""
ROW = 16
"""Height of a further row of tick labels."""


@dataclass(frozen=True)
class Scale:
    """From data to the page, linear or logarithmic.

    >>> scale = Scale(1.0, 100.0, 0.0, 10.0, log=True)
    >>> scale(10.0), scale.ticks()
    (5.0, [1.0, 10.0, 100.0])
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    @classmethod
    def fit(
        cls, values: Sequence[float], start: float, stop: float, *, log: bool, zero: bool = False
    ) -> Scale:
        """A scale that holds all values, with a little room; logarithmic only when every value is positive."""
        if log:
            powers = [math.log10(value) for value in values if value > 0] or [0.0]
            low, high = min(powers), max(powers)
            pad = max(0.04 * (high - low), 0.08)
            return cls(10 ** (low - pad), 10 ** (high + pad), start, stop, True)
        low, high = min(values, default=0.0), max(values, default=1.0)
        low = min(low, 0.0) if zero else low
        pad = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
        return cls(low if zero and low == 0 else low - pad, high + pad, start, stop)

    def __call__(self, value: float) -> float:
        """Where `value` lies on the page."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(value) if self.log else value
        return round(self.start + (at - low) / (high - low or 1.0) * (self.stop - self.start), 2)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values inside the scale: powers of ten, or steps of 1, 2 or 5."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            stride = max(1, math.ceil((last - first + 1) / (wanted + 1)))
            found = [10.0**n for n in range(first, last + 1, stride)]
            if len(found) > 2:
                return found
            finer = [m * 10.0**n for n in range(first - 1, last + 1) for m in (1, 2, 5)]
            finer = [tick for tick in finer if self.low <= tick <= self.high]
            linear = [tick for tick in Scale(self.low, self.high, 0, 1).ticks(4) if tick >= self.low]
            return finer if len(finer) > 2 else linear
        rough = (self.high - self.low) / wanted or 1.0
        base = 10.0 ** math.floor(math.log10(rough))
        step = next(base * m for m in (1, 2, 5, 10) if base * m >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        steps = [float(f"{n * step:.12g}") for n in range(first, first + 2 * wanted)]
        return [tick for tick in steps if tick <= self.high + 1e-9 * abs(self.high)]

    def label(self, value: float) -> str:
        """The text of a tick."""
        if self.log and value > 0 and abs(math.log10(value) - round(math.log10(value))) < 1e-9:
            exponent = round(math.log10(value))
            return power(exponent) if not -2 <= exponent <= 3 else f"{value:g}"
        if value != 0 and not 1e-3 <= abs(value) < 1e5:
            mantissa, exponent = f"{value:.1e}".split("e")
            return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
        return pretty(value)


def frame(
    x: Scale,
    y: Scale,
    x_label: str,
    y_label: str,
    *,
    x_ticks: Sequence[tuple[float, str]] = (),
    rows: int = 1,
) -> str:
    """Grid lines, ticks and names of both axes; the ticks below take turns in `rows` rows."""
    parts = []
    for value in y.ticks():
        at = y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 7}" y="{at + 4}">{escape(y.label(value))}</text>')
    for number, (value, text) in enumerate(x_ticks or [(value, x.label(value)) for value in x.ticks()]):
        at, below = x(value), HEIGHT - BOTTOM + 18 + number % rows * ROW
        parts.append(f'<text class="tick middle" x="{at}" y="{below}">{escape(text)}</text>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="name middle" x="{middle}" y="{HEIGHT - 8 + (rows - 1) * ROW}">{escape(x_label)}</text>'
    )
    tall = (TOP + base) / 2
    parts.append(
        f'<text class="name middle" x="13" y="{tall}" transform="rotate(-90 13 {tall})">{escape(y_label)}</text>'
    )
    return "".join(parts)


def picture(
    body: str, title: str, *, width: float = WIDTH, height: float = HEIGHT, above: float = 0.0
) -> str:
    """An SVG that scales with the page and tells screen readers what it shows."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {-above:g} {width:g} {height + above:g}" role="img" '
        f'aria-label="{escape(title)}">{body}</svg>'
    )
