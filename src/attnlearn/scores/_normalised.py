"""Scores of normalised queries and keys (Qwen3, Gemma 3): every head's query and key has the same length before positions turn it.

    q_a = gain * u_a,   u = z / sqrt(|z|^2 / width + eps),   z = (x_a, 1) a_i,        and the same for keys

Scores are no bilinear form then, so a layer holds the factors. What is seen of a head: the forms Theta_i(D) of the gained factors over
their sizes, and the quadratic forms |(x, 1) a_i|^2 and |(x, 1) b_i|^2 relative to eps. Gauge, with complex pairs as in `_rotary`:

| change | |
|---|---|
| a -> t a, eps -> t^2 eps, and the same for keys | one size for each side |
| gain_q -> t gain_q, gain_k -> gain_k / t on both coordinates of a pair | one for each pair |
| a column -> its negative, its gain -> its negative | signs |
| both coordinates of a pair -> turned by 90 degrees, in queries and keys | order |
| a_j -> exp(i phi) a_j, b_j -> exp(i phi) b_j where the gains of a pair are equal on both sides | phases |

Norms over all heads at once (OLMo 2) are another function: a head does not stand alone there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn.scores._around import Around
from attnlearn.scores._pairs import phases
from attnlearn.scores._products import project, project_back
from attnlearn.scores._protocol import Shown
from attnlearn.scores._rotary import Rotary, extended

SIDES = ("query", "key")
EQUAL_GAINS = 1e-6
"""Relative difference of the gains of a pair below which its phase is chosen freely: gains in float32 that are equal differ by less."""


class Unit(NamedTuple):
    """Normalised coordinates (n, k, m, width), and the sizes (n, k, m, 1) by which they were divided."""

    unit: np.ndarray
    size: np.ndarray


class Kept(NamedTuple):
    """What derivatives need: extended tokens if they were projected here, both sides, their gains in order, and what the base kept."""

    x: Any
    sides: tuple[Unit, Unit]
    gains: tuple[np.ndarray, np.ndarray]
    met: Any


class Normalised(Around):
    """Rotary factors, gains (m, width) of queries and keys in the order of the factors, and the eps (m,) of both norms.

    >>> from attnlearn.scores import Rotation
    >>> base = Rotary(*np.random.default_rng(0).standard_normal((2, 1, 3, 2)), Rotation((1.0,)))
    >>> scores = Normalised(base, np.ones((1, 2)), np.ones((1, 2)), 0.0, 0.0)
    >>> x = np.random.default_rng(1).standard_normal((1, 4, 2))
    >>> bool(np.abs(scores.logits(x, x.swapaxes(1, 2))[0]).max() <= 2)  # at most the width
    True
    """

    __slots__ = ("eps",)
    KIND = "normalised"
    OWN = ("query_gain", "key_gain")

    def __init__(self, base: Rotary, query_gain: Any, key_gain: Any, query_eps: Any, key_eps: Any) -> None:
        require(
            isinstance(base, Rotary), "base", "must be rotary scores to be normalised", type(base).__name__
        )
        shape, gains = (base.heads, base.rotation.width), (query_gain, key_gain)
        for name, gain in zip(self.OWN, gains):
            require(np.shape(gain) == shape, name, f"must have shape {shape}", gain)
        self._fill(base, dict(zip(self.OWN, gains)))
        self.eps = tuple(
            np.broadcast_to(np.asarray(e, base.dtype), (base.heads,)) for e in (query_eps, key_eps)
        )

    def _with(self, base: Any, own: Mapping[str, Any]) -> Normalised:
        return Normalised(base, *own.values(), *(part.astype(base.dtype) for part in self.eps))

    @property
    def rule(self) -> tuple[Any, ...]:
        """That of the base, and that it is normalised."""
        return (*self.base.rule, self.KIND)

    def described(self) -> dict[str, Any]:
        """Nothing: gains and sizes are arrays."""
        return {}

    @classmethod
    def names(cls, description: Mapping[str, Any]) -> tuple[str, ...]:
        """The gains, then the two eps."""
        return (*super().names(description), "query_eps", "key_eps")

    @classmethod
    def of(cls, description: Mapping[str, Any], arrays: Mapping[str, Any], base: Any) -> Normalised:
        """The scores again from their arrays and their base."""
        return cls(base, *(arrays[name] for name in cls.names(description)))

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name; the eps are fixed numbers with the heads first."""
        return {**super().arrays(), "query_eps": self.eps[0], "key_eps": self.eps[1]}

    def words(self) -> str:
        """The kind in words."""
        return f"{self.base.words()}, queries and keys normalised"

    def logits(self, x: np.ndarray, turned: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Scores (n, query, m, key) of one chunk of tokens."""
        del turned
        tokens = extended(x)
        queries, keys = (project(tokens, self.ordered(factor)) for factor in (self.base.a, self.base.b))
        found, kept = self.meet(queries, keys, positions)
        return found, kept._replace(x=tokens)

    def jvp(self, tangent: Normalised, kept: Kept) -> np.ndarray:
        """The change of the scores along a tangent."""
        factors = (tangent.base.a, tangent.base.b)
        queries, keys = (
            _moved(project(kept.x, self.ordered(factor)), side, self.base.rotation.width) * gain
            + side.unit * self.ordered(tangent.own[name])
            for factor, side, gain, name in zip(factors, kept.sides, kept.gains, self.OWN)
        )
        return self.base.along(queries, keys, kept.met)

    def vjp(self, change: np.ndarray, kept: Kept) -> Normalised:
        """The adjoint of `jvp`."""
        pulled = self.base.part(change, kept.met)
        gains = [self.reordered((p * side.unit).sum(axis=(0, 1))) for p, side in zip(pulled, kept.sides)]
        raw = self._raw(pulled, kept)
        a, b = (self.reordered(project_back(kept.x, part)) for part in raw)
        return self._with(Rotary(a, b, self.base.rotation), dict(zip(self.OWN, gains)))

    def meet(self, queries: np.ndarray, keys: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Scores of queries and keys that are not yet normalised."""
        width = self.base.rotation.width
        sides = tuple(_unit(raw, eps, width) for raw, eps in zip((queries, keys), self.eps))
        gains = tuple(self.ordered(np.asarray(gain, queries.dtype)) for gain in self.own.values())
        found, met = self.base.meet(*(side.unit * gain for side, gain in zip(sides, gains)), positions)
        return found, Kept(None, sides, gains, met)  # type: ignore[arg-type]

    def along(self, queries: np.ndarray, keys: np.ndarray, met: Kept) -> np.ndarray:
        """The change of the scores when queries and keys change; the gains do not."""
        width = self.base.rotation.width
        moved = (
            _moved(raw, side, width) * gain for raw, side, gain in zip((queries, keys), met.sides, met.gains)
        )
        return self.base.along(*moved, met.met)

    def part(self, change: np.ndarray, met: Kept) -> tuple[np.ndarray, np.ndarray]:
        """The adjoint of `along`."""
        return self._raw(self.base.part(change, met.met), met)

    def _raw(self, pulled: tuple[np.ndarray, np.ndarray], kept: Kept) -> tuple[np.ndarray, np.ndarray]:
        """Gradients in what is not yet normalised from those in what met."""
        width = self.base.rotation.width
        one, other = (_moved(p * gain, side, width) for p, gain, side in zip(pulled, kept.gains, kept.sides))
        return one, other

    # --- what shows, and one gauge ------------------------------------------------------------------------
    def at(self, offset: float) -> Shown:
        """Theta_i(D) and c_i(D) of the gained factors over their sizes: scores are these over the sizes of query and key."""
        return self._gained().at(offset)

    def bias_at(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """What a key adds to that form by its offset alone."""
        return self._gained().bias_at(offset)

    def _gained(self) -> Rotary:
        one = self._of_one_size()
        gains = one.own["query_gain"][:, None], one.own["key_gain"][:, None]
        return Rotary(one.base.a * gains[0], one.base.b * gains[1], self.base.rotation)

    def beyond(self) -> np.ndarray:
        """The quadratic forms of both norms, and their eps, of factors of one size."""
        one = self._of_one_size()
        forms = [
            (factor @ np.swapaxes(factor, 1, 2)).reshape(self.heads, -1)
            for factor in (one.base.a, one.base.b)
        ]
        return np.concatenate([*forms, *(part[:, None] for part in one.eps)], axis=1)

    def _of_one_size(self) -> Normalised:
        """The same scores with factors of the size of the root of the width."""
        factors, eps = [], []
        for factor, own in zip((self.base.a, self.base.b), self.eps):
            size = np.linalg.norm(factor, axis=(1, 2)) / np.sqrt(self.base.rotation.width)
            size = np.where(size > 0, size, 1)
            factors.append(factor / size[:, None, None])
            eps.append(own / size**2)
        base = Rotary(factors[0], factors[1], self.base.rotation)
        return Normalised(base, *self.own.values(), *eps)

    def unknowns(self) -> int:
        """Free numbers: the size of the gains of a pair is not counted, nor that of a factor whose norm has no eps to compare it with."""
        width, p = self.base.rotation.width, self.base.rotation.pairs
        sizes = sum(int(np.count_nonzero(part == 0)) for part in self.eps)
        return self.heads * (2 * (self.dim + 1) * width + 2 * width - p) - sizes

    def canonical(self) -> Normalised:
        """The same scores with factors of one size, gains balanced and positive, the larger of a pair first, and phases fixed."""
        one, p, dtype = self._of_one_size(), self.base.rotation.pairs, self.dtype
        factors = [np.asarray(part, np.float64) for part in (one.base.a, one.base.b)]
        gains = [np.asarray(part, np.float64) for part in one.own.values()]
        sizes = [np.sqrt(gain[:, :p] ** 2 + gain[:, p:] ** 2) for gain in gains]
        ratio = np.sqrt(np.divide(sizes[1], sizes[0], out=np.ones_like(sizes[0]), where=sizes[0] > 0))
        ratio = np.tile(np.where(ratio > 0, ratio, 1), (1, 2))
        gains = [gains[0] * ratio, gains[1] / ratio]
        for side in range(2):
            sign = np.where(gains[side] < 0, -1.0, 1.0)
            factors[side], gains[side] = factors[side] * sign[:, None], gains[side] * sign
        factors, gains = _quarter_turned(factors, gains, p)
        factors = _with_phases(factors, gains, p)
        a, b = (part.astype(dtype) for part in factors)
        base = Rotary(a, b, self.base.rotation)
        return Normalised(base, *(part.astype(dtype) for part in gains), *one.eps)


def _unit(raw: np.ndarray, eps: np.ndarray, width: int) -> Unit:
    square = np.einsum("nkmr,nkmr->nkm", raw, raw) / width + np.asarray(eps, raw.dtype)
    size = np.sqrt(np.maximum(square, np.finfo(raw.dtype).tiny))[..., None]
    return Unit(raw / size, size)


def _moved(raw: np.ndarray, side: Unit, width: int) -> np.ndarray:
    """The change of the normalised coordinates when the raw ones change by this; it is its own adjoint."""
    inner = np.einsum("nkmr,nkmr->nkm", raw, side.unit)[..., None] / width
    return (raw - side.unit * inner) / side.size


def _halves(part: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    return part[..., :p], part[..., p:]


def _quarter_turned(factors: list, gains: list, p: int) -> tuple[list, list]:
    """Both coordinates of a pair turned by 90 degrees where the second has the larger gains."""
    real, imaginary = (np.hypot(*parts) for parts in zip(*(_halves(gain, p) for gain in gains)))
    swap = imaginary > real * (1 + EQUAL_GAINS)
    for side in range(2):
        one, two = _halves(factors[side], p)
        g, h = _halves(gains[side], p)
        turned = np.where(swap[:, None], two, one), np.where(swap[:, None], -one, two)
        factors[side] = np.concatenate(turned, axis=-1)
        gains[side] = np.concatenate([np.where(swap, h, g), np.where(swap, g, h)], axis=-1)
    return factors, gains


def _with_phases(factors: list, gains: list, p: int) -> list:
    """Pairs of equal gains with the largest entry of b_j real and positive; others with that sign of their first coordinates."""
    equal = np.ones(gains[0][:, :p].shape, bool)
    for gain in gains:
        one, two = _halves(gain, p)
        equal &= np.abs(one - two) <= EQUAL_GAINS * np.maximum(np.abs(one), np.abs(two))
    pairs = [part[..., :p] + 1j * part[..., p:] for part in factors]
    phase = phases(pairs[1])
    half = np.where(np.real(phase) < 0, -1.0, 1.0)
    turn = np.where(equal[:, None], phase, half)
    return [np.concatenate([np.real(part * turn), np.imag(part * turn)], axis=-1) for part in pairs]
