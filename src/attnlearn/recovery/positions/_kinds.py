"""Which kinds of scores a caller asks for with `positions=`.

| `positions=` | kinds that are tried |
|---|---|
| None, "none" | scores without positions |
| a `Rotation`, `Frequencies` or `Offsets` | that one |
| "rotary" | the usual bases, heads of width d / num_heads; the select side decides |
| "relative" | a free number for each offset, which holds T5's buckets and ALiBi's slopes |
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attnlearn._errors import one_line, require
from attnlearn.scores import Frequencies, Offsets, Rotation, frequencies

Kind = Rotation | Offsets
NAMES = ("none", "rotary", "relative")
BASES = (10_000.0, 500_000.0, 1_000_000.0, 100_000.0)
"""Bases that models use, the most frequent first: Llama 2 and NeoX, Llama 3, Qwen 2, others."""


class Asked(NamedTuple):
    """What a caller asked for: a kind, or the name of several."""

    kind: Kind | str

    def kinds(self, dim: int, tokens: int, num_heads: int | None) -> list[Kind]:
        """The kinds to try on sequences of so many tokens in that dimension, the likeliest first.

        >>> len(Asked("rotary").kinds(32, 16, 4)), Asked("relative").kinds(8, 4, None)
        (4, [Offsets(kind='table', reach=3, number=0, both=True)])
        """
        if not isinstance(self.kind, str):
            return [self.kind]
        if self.kind == "relative":
            return [Offsets("table", reach=max(tokens - 1, 1))]
        reason = "must be given with positions='rotary': heads have the width d / num_heads"
        require(num_heads is not None, "num_heads", reason, num_heads)
        width = dim // (num_heads or 1)
        good = width > 1 and width % 2 == 0
        require(good, "num_heads", f"must leave heads of an even width in dimension {dim}", num_heads)
        return [frequencies(width, base=base).rotation for base in BASES]


def asked_for(positions: Any) -> Asked | None:
    """What a caller asks for: None for scores without positions.

    >>> asked_for("none") is None
    True
    """
    if positions is None or (isinstance(positions, str) and positions == "none"):
        return None
    found = positions.rotation if isinstance(positions, Frequencies) else positions
    named = isinstance(found, str) and found in NAMES
    rule = f"must be None, one of {', '.join(NAMES)}, or a Rotation or Offsets of attnlearn.scores"
    if not (named or isinstance(found, (Rotation, Offsets))):
        raise ValueError(f"positions: {rule}, got {one_line(repr(positions), 100)}")
    return Asked(found)
