"""Soft-capped scores: cap tanh(s / cap) of the scores s of a base, with a known cap (Gemma 2).

Gauge: that of the base, whose scores are seen as they are, constants of a query included. Cost of a chunk: one tanh for each pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn.scores._around import Around


class Kept(NamedTuple):
    """What derivatives need: that of the base, and the slope of the cap at every pair."""

    base: Any
    slope: np.ndarray


class Capped(Around):
    """Scores of a base that stay between -cap and cap.

    >>> from attnlearn.scores import Rotary, Rotation
    >>> scores = Capped(Rotary(*np.ones((2, 1, 3, 2)), Rotation((1.0,))), cap=0.5)
    >>> float(scores.logits(np.ones((1, 2, 2)), np.ones((1, 2, 2)))[0].max())
    0.5
    """

    __slots__ = ("cap",)
    KIND = "capped"

    def __init__(self, base: Any, cap: float) -> None:
        good = isinstance(cap, (int, float)) and np.isfinite(cap) and cap > 0
        require(good, "cap", "must be a finite number above 0", cap)
        self._fill(base, {})
        self.cap = float(cap)

    def _with(self, base: Any, own: Mapping[str, Any]) -> Capped:
        del own
        return Capped(base, self.cap)

    @property
    def rule(self) -> tuple[Any, ...]:
        """That of the base, and the cap."""
        return (*self.base.rule, "capped", self.cap)

    def described(self) -> dict[str, Any]:
        """The cap."""
        return {"cap": self.cap}

    @classmethod
    def of(cls, description: Mapping[str, Any], arrays: Mapping[str, Any], base: Any) -> Capped:
        """The scores again from their cap and their base."""
        del arrays
        return cls(base, float(description["cap"]))

    def words(self) -> str:
        """The kind in words."""
        return f"{self.base.words()}, scores soft-capped at {self.cap:g}"

    def logits(self, x: np.ndarray, turned: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Scores (n, query, m, key) of one chunk of tokens."""
        return self._capped(*self.base.logits(x, turned, positions))

    def jvp(self, tangent: Capped, kept: Kept) -> np.ndarray:
        """The change of the scores along a tangent."""
        return kept.slope * self.base.jvp(tangent.base, kept.base)

    def vjp(self, change: np.ndarray, kept: Kept) -> Capped:
        """The adjoint of `jvp`."""
        return self._with(self.base.vjp(change * kept.slope, kept.base), {})

    def meet(self, queries: np.ndarray, keys: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Scores of queries and keys."""
        return self._capped(*self.base.meet(queries, keys, positions))

    def along(self, queries: np.ndarray, keys: np.ndarray, met: Kept) -> np.ndarray:
        """The change of the scores when queries and keys change."""
        return met.slope * self.base.along(queries, keys, met.base)

    def part(self, change: np.ndarray, met: Kept) -> tuple[np.ndarray, np.ndarray]:
        """The adjoint of `along`."""
        return self.base.part(change * met.slope, met.base)

    def _capped(self, found: np.ndarray, kept: Any) -> tuple[np.ndarray, Kept]:
        found /= self.cap
        np.tanh(found, out=found)
        slope = 1 - found**2
        found *= self.cap
        return found, Kept(kept, slope)
