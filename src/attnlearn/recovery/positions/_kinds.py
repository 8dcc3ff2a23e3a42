"""Which kinds of scores are tried, and in which order.

| `positions=` | families that are tried |
|---|---|
| None | none; where the signals show that scores depend on positions, those that they name |
| "none" | none |
| "rotary" | one for each width of heads: the usual bases, and the usual shares of coordinates that are turned |
| "relative" | a free number for each offset, which holds T5's buckets and ALiBi's slopes |
| a `Rotation`, `Frequencies` or `Offsets` | that one |

The kinds of one family have scores of one shape, so that a fit of one of them is a start for the others. Narrow heads come before wide
ones: they cost least, and wide heads hold narrow ones with coordinates to spare, which Gauss-Newton reaches slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnlearn._errors import one_line
from attnlearn.recovery.positions._calibration import HEADS_MOST, WIDTHS
from attnlearn.scores import Frequencies, Offsets, Rotation, Visible, frequencies

Kind = Rotation | Offsets | None
"""How scores depend on positions; None: not at all."""
NAMES = ("none", "rotary", "relative")
BASES = (10_000.0, 500_000.0, 1_000_000.0, 100_000.0)
"""Bases that models use, the most frequent first: Llama 2 and NeoX, Llama 3, Qwen 2, others."""
SHARES = (4, 2)
"""What the width of a head is divided by for the coordinates that are turned, where it is not all of them: NeoX and StableLM, GLM and Phi."""


@dataclass(frozen=True)
class Asked:
    """What a caller asked for: a kind, or the name of several; None if the signals are to say."""

    kind: Rotation | Offsets | str | None


@dataclass(frozen=True)
class Family:
    """Kinds of scores of one shape, the likeliest first, and what a query sees."""

    kinds: tuple[Kind, ...]
    visible: Visible


def asked_for(positions: Any) -> Asked:
    """What a caller asks for.

    >>> asked_for("rotary"), asked_for(None)
    (Asked(kind='rotary'), Asked(kind=None))
    """
    found = positions.rotation if isinstance(positions, Frequencies) else positions
    named = found is None or (isinstance(found, str) and found in NAMES)
    rule = f"must be None, one of {', '.join(NAMES)}, or a Rotation or Offsets of attnlearn.scores"
    if not (named or isinstance(found, (Rotation, Offsets))):
        raise ValueError(f"positions: {rule}, got {one_line(repr(positions), 100)}")
    return Asked(found)


def widths(dim: int, num_heads: int | None) -> list[int]:
    """Widths of rotary heads in that dimension: that of heads which share it, if their number is known, and then powers of two.

    >>> widths(32, 4), widths(576, 9), widths(64, None)
    ([8, 4, 16, 32], [64, 128], [4, 8, 16, 32, 64])
    """
    least, most = min(dim / HEADS_MOST, WIDTHS[-1]), max(dim, WIDTHS[0])
    usual = [width for width in WIDTHS if least <= width <= most]
    own = [] if num_heads is None or dim % num_heads else [dim // num_heads]
    return list(dict.fromkeys([width for width in own if width % 2 == 0] + usual))


def rotary(width: int) -> tuple[Rotation, ...]:
    """Rotations of heads of that width.

    >>> [(kind.pairs, kind.still) for kind in rotary(8)]
    [(4, 0), (4, 0), (4, 0), (4, 0), (1, 6), (2, 4)]
    """
    whole = [frequencies(width, base=base).rotation for base in BASES]
    parts = [width // share for share in SHARES if width % (2 * share) == 0]
    return (*whole, *(frequencies(width, rotated=part).rotation for part in parts))


def relative(tokens: int) -> tuple[Offsets, ...]:
    """Tables of sequences of that length.

    >>> relative(4)
    (Offsets(kind='table', reach=3, number=0, both=True),)
    """
    return (Offsets("table", reach=max(tokens - 1, 1)),)
