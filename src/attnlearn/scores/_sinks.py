"""Attention sinks: one more key for every query, with a score of its own in each head (GPT-OSS).

    alpha_ab = exp(s_ab) / (sum_b' exp(s_ab') + exp(sink_i))

The sink is the last key of the scores (n, query, head, k + 1); patterns are cut to the k tokens, so a row of them has a sum below
one. A bias of the values counts for the tokens alone. A layer has all biases in its output bias, so it takes this one back where a query
looks at the sink: `sink_value` (m, d_out) is what the sink itself puts out, minus the bias of the head's values through its output projection.
Gauge: that of the base, whose scores are seen as they are. Sinks and their values are visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn.scores._around import Around


class Sinks(Around):
    """Scores of a base, one number (m,) for the sink of every head, and what each puts out (m, d_out).

    >>> from attnlearn.scores import Rotary, Rotation
    >>> scores = Sinks(Rotary(*np.ones((2, 1, 3, 2)), Rotation((1.0,))), np.zeros(1), np.zeros((1, 2)))
    >>> scores.logits(np.ones((1, 2, 2)), np.ones((1, 2, 2)))[0].shape
    (1, 2, 1, 3)
    """

    __slots__ = ()
    KIND = "sinks"
    OWN = ("sink", "sink_value")

    def __init__(self, base: Any, sink: Any, sink_value: Any) -> None:
        require(np.shape(sink) == (base.heads,), "sink", f"must have shape ({base.heads},)", sink)
        good = np.ndim(sink_value) == 2 and len(sink_value) == base.heads
        require(good, "sink_value", f"must have shape ({base.heads}, d_out)", sink_value)
        self._fill(base, {"sink": sink, "sink_value": sink_value})

    @property
    def sink_value(self) -> np.ndarray:
        """What the sink of every head puts out."""
        return self.own["sink_value"]

    def _with(self, base: Any, own: Mapping[str, Any]) -> Sinks:
        return Sinks(base, own["sink"], own["sink_value"])

    @property
    def rule(self) -> tuple[Any, ...]:
        """That of the base, and that there are sinks."""
        return (*self.base.rule, self.KIND)

    def described(self) -> dict[str, Any]:
        """Nothing: all numbers are free."""
        return {}

    @classmethod
    def of(cls, description: Mapping[str, Any], arrays: Mapping[str, Any], base: Any) -> Sinks:
        """The scores again from their sinks and their base."""
        del description
        return cls(base, arrays["sink"], arrays["sink_value"])

    def words(self) -> str:
        """The kind in words."""
        return f"{self.base.words()}, a sink for each head"

    def unknowns(self) -> int:
        """Free numbers of the scores."""
        return self.base.unknowns() + self.heads

    def logits(self, x: np.ndarray, turned: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Any]:
        """Scores (n, query, m, key + 1) of one chunk of tokens."""
        found, kept = self.base.logits(x, turned, positions)
        return self._beside(found, self.own["sink"]), kept

    def jvp(self, tangent: Sinks, kept: Any) -> np.ndarray:
        """The change of the scores along a tangent."""
        return self._beside(self.base.jvp(tangent.base, kept), tangent.own["sink"])

    def vjp(self, change: np.ndarray, kept: Any) -> Sinks:
        """The adjoint of `jvp`."""
        tokens = np.ascontiguousarray(change[..., :-1])
        # the value moves outputs, no score
        return Sinks(
            self.base.vjp(tokens, kept), change[..., -1].sum(axis=(0, 1)), np.zeros_like(self.sink_value)
        )

    def meet(self, queries: np.ndarray, keys: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Any]:
        """Scores of queries and keys."""
        found, met = self.base.meet(queries, keys, positions)
        return self._beside(found, self.own["sink"]), met

    def along(self, queries: np.ndarray, keys: np.ndarray, met: Any) -> np.ndarray:
        """The change of the scores when queries and keys change; the sinks do not."""
        return self._beside(self.base.along(queries, keys, met), np.zeros_like(self.own["sink"]))

    def part(self, change: np.ndarray, met: Any) -> tuple[np.ndarray, np.ndarray]:
        """The adjoint of `along`."""
        return self.base.part(np.ascontiguousarray(change[..., :-1]), met)

    @staticmethod
    def _beside(found: np.ndarray, sink: np.ndarray) -> np.ndarray:
        """The scores with that of the sink as the last key."""
        last = np.broadcast_to(np.asarray(sink, found.dtype)[:, None], (*found.shape[:3], 1))
        return np.concatenate([found, last], axis=-1)
