"""Rotary scores: queries and keys are turned by their positions before they meet.

On tokens extended by a 1, q_a = (x_a, 1) a_i and k_b = (x_b, 1) b_i with a_i, b_i (d + 1, width), so both biases are in the
factors. With complex pairs and D = p_b - p_a the score is Re sum_j exp(i w_j D) conj(q_aj) k_bj plus the product of the
coordinates that no position turns (`_rotation`). Inputs show M_j = conj(a_j) b_j^T and nothing else, so the gauge is
a_j -> z a_j, b_j -> b_j / conj(z), z complex, of every pair, and a -> a g, b -> b g^-T of the coordinates at rest, whose
key bias is invisible and kept at zero. Cost of a chunk: that of bilinear factors, and two rotations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn.scores import _meet
from attnlearn.scores._near_gauge import Coordinates, coordinates
from attnlearn.scores._pairs import Extended, balanced, moved
from attnlearn.scores._products import pair, project, project_back
from attnlearn.scores._protocol import Affine, Curvature, Reach, Shown
from attnlearn.scores._rotation import Rotation, as_positions, turn


class Kept(NamedTuple):
    """What derivatives on one chunk need: extended tokens, exp(i angle) of their positions, turned queries and keys.

    Queries and keys (n, k, m, width) are in the order of `Rotation.beside`; products of one with the other do not show it.
    """

    x: Any  # None where queries and keys came from elsewhere
    turns: np.ndarray
    queries: np.ndarray
    keys: np.ndarray


def extended(x: np.ndarray) -> np.ndarray:
    """Tokens with a 1 at the end."""
    return np.concatenate([x, np.ones((*x.shape[:2], 1), x.dtype)], axis=-1)


class Rotary:
    """Factors a, b (m, d + 1, width) on tokens extended by a 1, and the rotation. Also the shape of their tangents.

    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.standard_normal((2, 3, 5, 4))
    >>> scores = Rotary(a, b, Rotation((1.0, 0.01)))
    >>> scores.heads, scores.dim, scores.at(2).theta.shape
    (3, 4, (3, 4, 4))
    """

    __slots__ = ("a", "b", "rotation")
    KIND = "rotary"

    def __init__(self, a: Any, b: Any, rotation: Rotation) -> None:
        self.a, self.b, self.rotation = a, b, rotation

    @classmethod
    def of_factors(
        cls,
        query: np.ndarray,
        key: np.ndarray,
        rotation: Rotation,
        *,
        query_bias: np.ndarray | None = None,
        key_bias: np.ndarray | None = None,
        scale: float = 1.0,
        pairing: str = "half-split",
    ) -> Rotary:
        """From projections (m, d, width) and biases (m, width) in a model's own order of coordinates.

        >>> of = Rotary.of_factors(np.ones((1, 2, 4)), np.ones((1, 2, 4)), Rotation((1.0,), still=2))
        >>> of.a.shape
        (1, 3, 4)
        """
        m, _, width = query.shape
        require(key.shape == query.shape, "key", f"must have shape {query.shape} like query", key)
        require(width == rotation.width, "query", f"must have heads of width {rotation.width}", width)
        order = rotation.order(pairing)

        def extended(weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
            last = np.zeros((m, width), weight.dtype) if bias is None else bias
            return np.concatenate([weight, last[:, None]], axis=1)[..., order]

        return cls(scale * extended(query, query_bias), extended(key, key_bias), rotation)._at_rest()

    def _at_rest(self) -> Rotary:
        """Without the key bias of coordinates that no position turns: it adds one number to all keys of a query."""
        if not self.rotation.still:
            return self
        b = self.b.copy()
        b[:, -1, 2 * self.rotation.pairs :] = 0
        return Rotary(self.a, b, self.rotation)

    # --- kind ---------------------------------------------------------------------------------------------
    rule, sink_value = (), None

    @property
    def exact(self) -> bool:
        """Whether no key bias is left out: those of coordinates at rest are."""
        return not self.rotation.still

    def described(self) -> dict[str, Any]:
        """Frequencies, and coordinates at rest."""
        return {"frequencies": list(self.rotation.frequencies), "still": self.rotation.still}

    @classmethod
    def names(cls, description: Mapping[str, Any]) -> tuple[str, ...]:
        """Both factors."""
        return ("query", "key")

    @classmethod
    def of(cls, description: Mapping[str, Any], arrays: Mapping[str, Any], base: Any) -> Rotary:
        """The scores again from frequencies and factors."""
        rotation = Rotation(tuple(description["frequencies"]), int(description["still"]))
        return cls(arrays["query"], arrays["key"], rotation)

    def words(self) -> str:
        """The kind in words."""
        rest = f", {self.rotation.still} coordinates at rest" if self.rotation.still else ""
        return f"rotary positions ({self.rotation.pairs} pairs{rest})"

    # --- parameters ---------------------------------------------------------------------------------------
    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.a.shape[0]

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        return self.a.shape[1] - 1

    @property
    def dtype(self) -> np.dtype:
        """Precision of the parameters."""
        return self.a.dtype

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name."""
        return {"query": self.a, "key": self.b}

    def flat(self) -> np.ndarray:
        """All numbers as one vector."""
        return np.concatenate([self.a.reshape(-1), self.b.reshape(-1)])

    def shaped(self, vector: np.ndarray) -> Rotary:
        """A vector of `flat` in the shape of these scores, sharing its memory."""
        size = self.a.size
        return Rotary(vector[:size].reshape(self.a.shape), vector[size:].reshape(self.b.shape), self.rotation)

    def astype(self, dtype: Any) -> Rotary:
        """The same parameters in another precision."""
        return Rotary(np.asarray(self.a, dtype), np.asarray(self.b, dtype), self.rotation)

    def __iadd__(self, other: Rotary) -> Rotary:
        self.a += other.a
        self.b += other.b
        return self

    def seen_through(self, shift: np.ndarray, matrix: np.ndarray) -> Rotary:
        """The scores as a function of z where the tokens are x = shift + matrix z."""

        def moved(factor: np.ndarray) -> np.ndarray:
            last = factor[:, -1:] + shift @ factor[:, :-1][:, None]
            return np.concatenate(
                [np.swapaxes(matrix, 0, 1) @ factor[:, :-1], last.reshape(len(factor), 1, -1)], 1
            )

        return Rotary(moved(self.a), moved(self.b), self.rotation)._at_rest()

    # --- forward and derivatives --------------------------------------------------------------------------
    def logits(self, x: np.ndarray, turned: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Scores (n, query, m, key) of one chunk of tokens at the given positions, 0 .. k-1 by default."""
        tokens = extended(x)
        found, met = self.meet(*self._projected(tokens), positions)
        return found, met._replace(x=tokens)

    def jvp(self, tangent: Rotary, kept: Kept) -> np.ndarray:
        """The change of the scores along a tangent."""
        return self.along(*tangent._projected(kept.x), kept)

    def _projected(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return project(tokens, self.ordered(self.a)), project(tokens, self.ordered(self.b))

    def vjp(self, change: np.ndarray, kept: Kept) -> Rotary:
        """The adjoint of `jvp`."""
        a, b = (self.reordered(project_back(kept.x, part)) for part in self.part(change, kept))
        return Rotary(a, b, self.rotation)

    def ordered(self, factor: np.ndarray) -> np.ndarray:
        """Columns with the two parts of each pair side by side."""
        return self.rotation.beside(factor)

    def reordered(self, factor: np.ndarray) -> np.ndarray:
        """The adjoint of `ordered`."""
        return self.rotation.apart(factor)

    def meet(self, queries: np.ndarray, keys: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Scores of queries and keys, turned in their own memory."""
        n, k, m, _ = queries.shape
        turns = self.rotation.turns(as_positions(positions, n, k), m, queries.dtype)
        met = Kept(None, turns, turn(queries, turns), turn(keys, turns))
        return pair(met.queries, met.keys), met

    def along(self, queries: np.ndarray, keys: np.ndarray, met: Kept) -> np.ndarray:
        """The change of the scores when queries and keys change by these."""
        return _meet.along(turn(queries, met.turns), turn(keys, met.turns), _meet.Met(met.queries, met.keys))

    def part(self, change: np.ndarray, met: Kept) -> tuple[np.ndarray, np.ndarray]:
        """The adjoint of `along`."""
        back = met.turns.conj()
        one, other = (turn(g, back) for g in _meet.part(change, _meet.Met(met.queries, met.keys)))
        return one, other

    # --- rank and counts ----------------------------------------------------------------------------------
    @property
    def rank(self) -> int:
        """Coordinates of a head."""
        return self.rotation.width

    def of_rank(self, rank: int | None, rounding: float = 0.0) -> Rotary:
        """Themselves: which coordinate has which frequency is known, so the width is no free choice."""
        del rank, rounding
        return self

    def unknowns(self) -> int:
        """Free numbers: gauge and invisible key biases are not counted."""
        p, still, extended = self.rotation.pairs, self.rotation.still, self.dim + 1
        return self.heads * (p * (4 * extended - 2) + still * (2 * extended - 1 - still))

    # --- coordinates, gauge, and what shows ---------------------------------------------------------------
    def preconditioner(self, curvature: Curvature) -> Coordinates:
        """Head by head, with the offsets as often as they meet (`_near_gauge`)."""
        return coordinates(self.a, self.b, self.rotation, curvature)

    def moved(self, step: Rotary) -> Rotary:
        """The scores after a step, to first order their sum (`_pairs.moved`)."""
        parts = [
            moved(*(np.asarray(part, np.float64) for part in head))
            for head in zip(self.a, self.b, step.a, step.b)
        ]
        a, b = (np.stack(part).astype(self.dtype) for part in zip(*parts))
        return Rotary(a, b, self.rotation)._at_rest()

    def gauge(self, by: Coordinates) -> Coordinates:
        """The coordinates themselves, which know their null space."""
        return by

    def without_gauge(self, t: Rotary, gauge: Coordinates) -> Rotary:
        """The coordinates without changes that no input shows."""
        parts = [head.shown(a, b) for head, a, b in zip(gauge.heads, t.a, t.b)]
        a, b = (np.stack(part).astype(t.dtype) for part in zip(*parts))
        return Rotary(a, b, self.rotation)._at_rest()

    def at(self, offset: float) -> Shown:
        """Theta_i(D) and c_i(D): the score of x_a, x_b at offset D = p_b - p_a is x_a^T Theta x_b + c^T x_b + a query's own.

        What depends on the query and the offset, x_a^T t_i(D) + t0_i(D), is `bias_at`.
        """
        extended = self._extended(offset)
        return Shown(extended[:, :-1, :-1], extended[:, -1, :-1])

    def bias_at(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """What a key adds by its offset alone: t_i(D) (m, d), which meets the query, and the number t0_i(D) (m,)."""
        extended = self._extended(offset)
        return extended[:, :-1, -1], extended[:, -1, -1]

    def _extended(self, offset: float) -> np.ndarray:
        turned = np.asarray(self.rotation.matrix(offset), self.dtype)
        return self.a @ np.swapaxes(self.b @ turned, 1, 2)

    def beyond(self) -> np.ndarray:
        """Nothing: Theta_i(D), c_i(D) and `bias_at` are all that shows."""
        return np.zeros((self.heads, 0), self.dtype)

    def canonical(self) -> Rotary:
        """The same scores in one gauge (`balanced`)."""
        return Rotary(*balanced(self.a, self.b, self.rotation.pairs), self.rotation)

    def shown(self, tangent: Rotary | None = None) -> Shown:
        """Theta_i and c_i at offset 0, or their change along a tangent."""
        if tangent is None:
            return self.at(0)
        one, other = (
            Rotary(tangent.a, self.b, self.rotation).at(0),
            Rotary(self.a, tangent.b, self.rotation).at(0),
        )
        return Shown(one.theta + other.theta, one.query_bias + other.query_bias)

    def reach(self, by: Coordinates, white: Affine) -> Reach:
        """Norms of the maps from coordinates to Theta_i and c_i at any one offset, in the coordinates of the tokens."""
        return by.reach(Extended(white))
