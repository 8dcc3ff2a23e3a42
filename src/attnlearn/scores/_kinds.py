"""Members by name: what a file or a report says of the kind of scores, and the scores again from that and their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from attnlearn._errors import require
from attnlearn.scores._bilinear import Bilinear
from attnlearn.scores._offsets import Offsets
from attnlearn.scores._protocol import Scores
from attnlearn.scores._relative import Relative
from attnlearn.scores._rotary import Rotary
from attnlearn.scores._rotation import Rotation

ARRAYS = {
    "bilinear": ("theta", "query_bias"),
    "rotary": ("query", "key"),
    "relative": ("theta", "query_bias", "table"),
}
"""The arrays of each kind, in order; all have the heads first."""


class Held(Scores, Protocol):
    """Scores that a layer can hold: what a layer asks beyond what a solver does."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name, as in `ARRAYS`."""
        ...

    def bias_at(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """What a key adds by its offset alone: vectors (m, d) that meet the query, and numbers (m,)."""
        ...


def describe(scores: Held) -> dict[str, Any]:
    """The kind of scores and its fixed numbers, as JSON holds them.

    >>> describe(Bilinear.whole(np.zeros((1, 2, 2)), np.zeros((1, 2))))
    {'kind': 'bilinear'}
    """
    if isinstance(scores, Rotary):
        rotation = scores.rotation
        return {"kind": "rotary", "frequencies": list(rotation.frequencies), "still": rotation.still}
    if isinstance(scores, Relative):
        o = scores.offsets
        return {"kind": "relative", "offsets": o.kind, "reach": o.reach, "number": o.number, "both": o.both}
    require(
        isinstance(scores, Bilinear), "scores", "must be bilinear, rotary or relative", type(scores).__name__
    )
    return {"kind": "bilinear"}


def build(description: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Scores of the described kind with these arrays: the inverse of `describe` and `arrays`.

    >>> build({"kind": "bilinear"}, {"theta": np.zeros((1, 2, 2)), "query_bias": np.zeros((1, 2))}).heads
    1
    """
    kind = description.get("kind")
    require(kind in ARRAYS, "scores", f"must be one of {', '.join(ARRAYS)}", kind)
    named = [arrays[name] for name in ARRAYS[str(kind)]]
    if kind == "rotary":
        query, key = named
        return Rotary(query, key, Rotation(tuple(description["frequencies"]), int(description["still"])))
    if kind == "relative":
        chosen = (description[name] for name in ("offsets", "reach", "number", "both"))
        return Relative(Bilinear.whole(*named[:2]), named[2], Offsets(*chosen))
    return Bilinear.whole(*named)


def words(scores: Held) -> str:
    """The kind in words, for people.

    >>> words(Bilinear.whole(np.zeros((1, 2, 2)), np.zeros((1, 2))))
    'no positions'
    """
    if isinstance(scores, Rotary):
        rotation = scores.rotation
        rest = f", {rotation.still} coordinates at rest" if rotation.still else ""
        return f"rotary positions ({rotation.pairs} pairs{rest})"
    if isinstance(scores, Relative):
        return {"table": "a table by offset", "buckets": "buckets by offset", "slope": "slopes (ALiBi)"}[
            scores.offsets.kind
        ]
    return "no positions"
