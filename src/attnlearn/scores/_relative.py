"""Relative scores: a bilinear form and a table by offset, x_a^T Theta_i x_b + c_i^T x_b + beta_i(p_b - p_a).

T5's buckets, ALiBi's slopes and a free number for every offset are one member (`_offsets`): beta_i is linear in the numbers of
the head. A constant added to all offsets is invisible; `canonical` takes it out. Cost of a chunk: that of the bilinear form, and
one sum over its pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn.scores._bilinear import Bilinear
from attnlearn.scores._kronecker import Kronecker
from attnlearn.scores._offsets import Offsets
from attnlearn.scores._protocol import Affine, Curvature, Reach, Shown
from attnlearn.scores._rotation import as_positions

WORDS = {"table": "a table by offset", "buckets": "buckets by offset", "slope": "slopes (ALiBi)"}


class Kept(NamedTuple):
    """What derivatives on one chunk need: that of the bilinear form, the design of its offsets, and the offset of each pair."""

    base: Any
    design: np.ndarray
    place: np.ndarray


class Relative:
    """A bilinear form, numbers (m, numbers) of a table, and how offsets choose among them. Also the shape of their tangents.

    >>> base = Bilinear.whole(np.zeros((2, 3, 3)), np.zeros((2, 3)))
    >>> scores = Relative(base, np.array([[0.5], [0.25]]), Offsets("slope"))
    >>> scores.bias(np.array([-2])).tolist()
    [[-1.0], [-0.5]]
    """

    __slots__ = ("base", "offsets", "table")
    KIND = "relative"
    rule, sink_value, exact = (), None, False

    def __init__(self, base: Bilinear, table: Any, offsets: Offsets) -> None:
        rule = f"must have shape ({base.heads}, {offsets.numbers})"
        require(np.shape(table) == (base.heads, offsets.numbers), "table", rule, table)
        self.base, self.table, self.offsets = base, table, offsets

    def described(self) -> dict[str, Any]:
        """How offsets choose among the numbers of a table."""
        o = self.offsets
        return {"offsets": o.kind, "reach": o.reach, "number": o.number, "both": o.both}

    @classmethod
    def names(cls, description: Mapping[str, Any]) -> tuple[str, ...]:
        """Theta_i, c_i and the tables."""
        return (*Bilinear.names(description), "table")

    @classmethod
    def of(cls, description: Mapping[str, Any], arrays: Mapping[str, Any], base: Any) -> Relative:
        """The scores again from their tables and matrices."""
        chosen = Offsets(*(description[name] for name in ("offsets", "reach", "number", "both")))
        return cls(Bilinear.of(description, arrays, base), arrays["table"], chosen)

    def words(self) -> str:
        """The kind in words."""
        return WORDS[self.offsets.kind]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.base.heads

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        return self.base.dim

    @property
    def dtype(self) -> np.dtype:
        """Precision of the parameters."""
        return self.base.dtype

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name."""
        return {"theta": self.base.theta(), "query_bias": self.base.c, "table": self.table}

    def flat(self) -> np.ndarray:
        """All numbers as one vector."""
        return np.concatenate([self.base.flat(), self.table.reshape(-1)])

    def shaped(self, vector: np.ndarray) -> Relative:
        """A vector of `flat` in the shape of these scores, sharing its memory."""
        size = self.table.size
        return Relative(
            self.base.shaped(vector[:-size]), vector[-size:].reshape(self.table.shape), self.offsets
        )

    def astype(self, dtype: Any) -> Relative:
        """The same parameters in another precision."""
        return Relative(self.base.astype(dtype), np.asarray(self.table, dtype), self.offsets)

    def __iadd__(self, other: Relative) -> Relative:
        for one, more in zip((*self.base, self.table), (*other.base, other.table)):
            if one is not None:
                one += more
        return self

    def seen_through(self, shift: np.ndarray, matrix: np.ndarray) -> Relative:
        """The scores as a function of z where the tokens are x = shift + matrix z; tables stay."""
        return Relative(self.base.seen_through(shift, matrix), self.table, self.offsets)

    def moved(self, step: Relative) -> Relative:
        """The scores after a step."""
        return self.shaped(self.flat() + step.flat())

    # --- forward and derivatives --------------------------------------------------------------------------
    def logits(self, x: np.ndarray, turned: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Scores (n, query, m, key) of one chunk of tokens at the given positions, 0 .. k-1 by default."""
        return self._beside(*self.base.logits(x, turned), positions)

    def _beside(self, found: np.ndarray, base: Any, positions: Any) -> tuple[np.ndarray, Kept]:
        """Scores of the bilinear form with the tables added."""
        n, k, *_ = found.shape
        places = np.atleast_2d(as_positions(positions, n, k))
        apart = places[:, None, :] - places[:, :, None]  # key minus query, (1 or n, query, key)
        distinct, place = np.unique(apart, return_inverse=True)
        kept = Kept(base, self.offsets.design(distinct).astype(found.dtype), place.reshape(apart.shape))
        found += self._spread(self.table, kept).astype(found.dtype, copy=False)
        return found, kept

    def ordered(self, factor: np.ndarray) -> np.ndarray:
        """The columns as they are."""
        return factor

    reordered = ordered

    def meet(self, queries: np.ndarray, keys: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Inner products of queries and keys, and the tables."""
        return self._beside(*self.base.meet(queries, keys), positions)

    def along(self, queries: np.ndarray, keys: np.ndarray, met: Kept) -> np.ndarray:
        """The change of the scores when queries and keys change; the tables do not."""
        return self.base.along(queries, keys, met.base)

    def part(self, change: np.ndarray, met: Kept) -> tuple[np.ndarray, np.ndarray]:
        """The adjoint of `along`."""
        return self.base.part(change, met.base)

    def jvp(self, tangent: Relative, kept: Kept) -> np.ndarray:
        """The change of the scores along a tangent."""
        change = self.base.jvp(tangent.base, kept.base)
        change += self._spread(tangent.table, kept)
        return change

    def vjp(self, change: np.ndarray, kept: Kept) -> Relative:
        """The adjoint of `jvp`."""
        pairs = change.sum(axis=0, keepdims=True) if len(kept.place) == 1 else change
        by_head = pairs.transpose(2, 0, 1, 3).reshape(self.heads, -1)
        flat, size = kept.place.reshape(-1), len(kept.design)
        sums = np.stack([np.bincount(flat, weights=row, minlength=size) for row in by_head])
        return Relative(
            self.base.vjp(change, kept.base), sums.astype(change.dtype) @ kept.design, self.offsets
        )

    @staticmethod
    def _spread(table: np.ndarray, kept: Kept) -> np.ndarray:
        """The biases (1 or n, query, m, key) of a table."""
        return (table @ kept.design.T)[:, kept.place].transpose(1, 2, 0, 3)

    # --- rank and counts ----------------------------------------------------------------------------------
    @property
    def rank(self) -> int | None:
        """Columns of the factors; None when Theta is whole."""
        return self.base.rank

    def of_rank(self, rank: int | None, rounding: float = 0.0) -> Relative:
        """The bilinear form of that rank, with the same table."""
        return Relative(self.base.of_rank(rank, rounding), self.table, self.offsets)

    def unknowns(self) -> int:
        """Free numbers: the gauge and the invisible constant of each table are not counted."""
        return self.base.unknowns() + self.heads * self.offsets.free

    # --- coordinates, gauge, and what shows ---------------------------------------------------------------
    def preconditioner(self, curvature: Curvature) -> Coordinates:
        """That of the bilinear form; one number of a table meets the share 1/numbers of its head's pairs."""
        own = np.diagonal(curvature.coupling).reshape(self.heads, -1).mean(axis=1)
        own = np.maximum(own / self.offsets.numbers, np.finfo(np.float32).tiny)
        by, met = self.base.preconditioner(curvature), curvature.met
        far = 1 if self.offsets.constant else met.shape[0] - 1
        return Coordinates(by, (1 / np.sqrt(own))[:, None].astype(np.float32), far, self._taken(met))

    def _taken(self, met: np.ndarray) -> np.ndarray:
        """Which numbers some pair of places takes that meets: under a causal mask no later key does."""
        k = met.shape[0]
        seen = [offset for offset in range(1 - k, k) if np.diagonal(met.sum(axis=1), offset).any()]
        return np.asarray(self.offsets.design(np.array(seen)).any(axis=0))

    def gauge(self, by: Coordinates) -> Any:
        """That of the bilinear form, which may be none, and which numbers of the table the data can show."""
        return self.base.gauge(by.base), by.taken

    def without_gauge(self, t: Relative, gauge: Any) -> Relative:
        """The coordinates without the gauge of the factors, the constant of each table and numbers that no pair takes."""
        base, taken = gauge
        table = np.where(taken, t.table, 0)
        if self.offsets.constant:
            table = np.where(taken, table - table.sum(axis=1, keepdims=True) / taken.sum(), 0)
        return Relative(self.base.without_gauge(t.base, base), table.astype(t.table.dtype), self.offsets)

    def canonical(self) -> Relative:
        """The same patterns with whole matrices and tables of mean zero."""
        return Relative(
            Bilinear.whole(self.base.theta(), self.base.c), self.offsets.centred(self.table), self.offsets
        )

    def bias(self, offsets: np.ndarray) -> np.ndarray:
        """beta_i (m, len) at these offsets."""
        return self.table @ self.offsets.design(offsets).T.astype(self.dtype)

    def at(self, offset: float) -> Shown:
        """Theta_i and c_i, which are the same at every offset."""
        del offset
        return self.base.shown()

    def bias_at(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """What a key adds by its offset alone: nothing that meets the query, and beta_i (m,)."""
        return np.zeros((self.heads, self.dim), self.dtype), self.bias(np.array([offset]))[:, 0]

    def beyond(self) -> np.ndarray:
        """Nothing: the tables are in `bias_at`."""
        return self.base.beyond()

    def shown(self, tangent: Relative | None = None) -> Shown:
        """Theta_i and c_i, or their change along a tangent."""
        return self.base.shown(None if tangent is None else tangent.base)

    def reach(self, by: Coordinates, white: Affine) -> Reach:
        """That of the bilinear form; the numbers of a table count among the biases."""
        found = self.base.reach(by.base, white)
        return Reach(found.theta, np.hypot(found.query_bias, by.far * np.asarray(by.table, np.float64)[:, 0]))


class Coordinates(NamedTuple):
    """The preconditioner of the bilinear form and a factor (m, 1) for each table."""

    base: Kronecker
    table: np.ndarray
    far: int
    """By how much a number of the table is multiplied at the farthest offset: 1, or that offset."""
    taken: np.ndarray
    """Which numbers of the table the data can show."""

    def apply(self, t: Relative) -> Relative:
        """Direction of the scores for preconditioned coordinates t."""
        return Relative(self.base.apply(t.base), t.table * self.table, t.offsets)

    def transpose(self, g: Relative) -> Relative:
        """The adjoint of `apply`."""
        return Relative(self.base.transpose(g.base), g.table * self.table, g.offsets)

    def serves(self, residual: float) -> bool:
        """Always: it changes little with the scores."""
        del residual
        return True
