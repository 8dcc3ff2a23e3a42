"""Test of fit: is what a fit leaves noise, or does the input explain part of it?

The residual e of each half of the sequences is predicted by the regression of the other half's residual on features of the tokens
(`_features`). With u_n = <prediction, e> of sequence n,

    z = sum_n u_n / sqrt(sum_n u_n^2),        P(z > t) <= exp(-t^2 / 2)

if the sign of each sequence's residual is fair given the inputs and the other half: rows of one sequence may depend on each
other, and the errors may be larger on some inputs than on others. The residuals of a least squares fit are less aligned with its
features than the errors are, which makes the test cautious. Cutting the largest u_n keeps their signs, so the bound holds for it too; without
that a few sequences with large errors would hide what many show.

A residual in which no family is found may still have structure that none of them holds. Equal inputs settle it: outputs that
differ there are noise, and what equal inputs share is not.

Cost: a least squares problem of a few hundred columns for each family and half. What can fail: errors whose mean is not zero given
the input are structure to this test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._regress import inverse_factor
from attnlearn.solve.noise._features import FAMILIES, Family, families


def some_sequences(number: int, tokens: int) -> int:
    """Sequences that the test looks at, of so many tokens: more rows would take longer than they tell."""
    return min(number, max(calibration.SAMPLE, 2 * calibration.LOOK_MOST // tokens))


def threshold() -> float:
    """The z above which a family explains part of the residual: both z of both halves of every family are wrong with `DELTA`.

    >>> round(threshold(), 2)
    5.86
    """
    return float(np.sqrt(2 * np.log(4 * len(FAMILIES) / calibration.DELTA)))


@dataclass(frozen=True)
class Found:
    """One family: its z, and the share of the residual's square that it explains on sequences that were not regressed on."""

    name: str
    z: float
    share: float


@dataclass(frozen=True)
class Fitness:
    """What the test found, by family, on so many units."""

    families: tuple[Found, ...]
    units: int

    @property
    def clearest(self) -> Found:
        """The family with the largest z."""
        return max(self.families, key=lambda found: found.z)

    @property
    def structured(self) -> bool:
        """Whether the input explains part of the residual."""
        return self.clearest.z > threshold()

    @property
    def most(self) -> Found:
        """The family that explains most, of those that explain something beyond half of what counts as chance.

        A cause that shows itself in few sequences has a small z, however much it explains.
        """
        likely = [found for found in self.families if found.z > threshold() / 2]
        return max(likely or self.families, key=lambda found: found.share)

    def to_json(self) -> dict[str, Any]:
        """z and share of every family."""
        return {
            "structured": self.structured,
            "clearest": self.clearest.name,
            "most": self.most.name,
            "threshold": threshold(),
            "sequences": self.units,
            "families": {found.name: {"z": found.z, "share": found.share} for found in self.families},
        }


class TestOfFit:
    """The features of a layer on some sequences, ready for any residual on them."""

    __test__ = False

    def __init__(
        self, layer: AttentionLayer, held: Batch, seed: int = 0, only: tuple[str, ...] = FAMILIES
    ) -> None:
        n = held.num
        units = np.arange(n) if held.groups is None else np.unique(held.groups, return_inverse=True)[1]
        self.units, self.outputs = units, layer.out_dim
        rng = np.random.default_rng([seed, 0xF1])
        side = (rng.permutation(int(units.max()) + 1) % 2)[units]
        self.halves = [np.flatnonzero(side == half) for half in (0, 1)]
        self.parts = [
            _Regression(family, n, self.halves)
            for family in families(layer, held, seed)
            if family.name in only
        ]

    def __call__(self, rest: Float[np.ndarray, "n k o"]) -> Fitness:
        """Test one residual; padded rows must be zero."""
        rest = np.asarray(rest, np.float64)
        size = max(float(np.sqrt(np.mean(rest**2))), np.finfo(float).tiny)
        rest = rest / size
        found = []
        for part in self.parts:
            seen = part.seen(rest)
            predicted = part.predicted(seen)
            gains = np.sum(predicted * seen, axis=(1, 2))
            z = max(_standardised(gains[half], self.units[half]) for half in self.halves)
            share = float((2 * gains.sum() - np.sum(predicted**2)) / max(np.sum(seen**2), 1.0))
            found.append(Found(part.name, z, share))
        return Fitness(tuple(found), int(self.units.max()) + 1)

    def along(
        self, rest: Float[np.ndarray, "n k o"], change: Float[np.ndarray, "n k o"]
    ) -> Callable[[float], bool]:
        """Whether the test would find structure in rest + size * change, as a function of the size.

        The regressions are made once: predictions are linear in the residual, so the gain of every sequence is a polynomial of second
        degree in the size.
        """
        unit = max(float(np.sqrt(np.mean(np.square(rest)))), np.finfo(float).tiny)
        gains: list[np.ndarray] = []
        for part in self.parts:
            old, new = (part.seen(values / unit) for values in (rest, change))
            of_old, of_new = part.predicted(old), part.predicted(new)
            products = (of_old * old, of_old * new + of_new * old, of_new * new)
            gains.append(np.stack([np.sum(values, axis=(1, 2)) for values in products]))

        def seen(size: float) -> bool:
            powers = np.array([1.0, size, size**2])
            return any(
                _standardised((powers @ gain)[half], self.units[half]) > threshold()
                for gain in gains
                for half in self.halves
            )

        return seen


def _standardised(gains: Float[np.ndarray, "n"], units: Int[np.ndarray, "n"]) -> float:
    """The sum of the units' gains over the root of the sum of their squares; or that with the largest gains cut, if it is larger."""
    of_units = np.bincount(units, weights=gains)
    most = np.quantile(np.abs(of_units), 1 - calibration.FEW)
    both = of_units, np.clip(of_units, -most, most)
    return float(max(own.sum() / max(np.sqrt(np.sum(own**2)), np.finfo(float).tiny) for own in both))


class _Regression:
    """Least squares on the columns of one family, for each half of the sequences."""

    def __init__(self, family: Family, n: int, halves: list[np.ndarray]) -> None:
        self.name, self.outputs, self.halves = family.name, family.outputs, halves
        norms = np.sqrt(np.mean(family.columns**2, axis=0, dtype=np.float64))
        columns = (family.columns[:, norms > 0] / norms[norms > 0]).astype(np.float32)
        columns = columns.reshape(n, -1, columns.shape[1])
        self.rows = columns.shape[1]
        self.columns = [columns[half].reshape(-1, columns.shape[2]) for half in halves]
        self.factors = [inverse_factor(own.T @ own, calibration.NEGLIGIBLE**2) for own in self.columns]

    def seen(self, rest: np.ndarray) -> np.ndarray:
        """The residual (n, rows, columns) as the columns of this family explain it."""
        rest = rest if self.outputs is None else rest @ self.outputs
        return rest.reshape(len(rest), self.rows, -1).astype(np.float32)

    def predicted(self, there: np.ndarray) -> np.ndarray:
        """The residual of every sequence as the other half predicts it."""
        parts = [there[half].reshape(-1, there.shape[2]) for half in self.halves]
        found = [
            (factor.T @ (factor @ (own.T @ part))).astype(np.float32)
            for factor, own, part in zip(self.factors, self.columns, parts, strict=True)
        ]
        answer = np.empty_like(there)
        for half, own, other in zip(self.halves, self.columns, found[::-1], strict=True):
            answer[half] = (own @ other).reshape(len(half), self.rows, -1)
        return answer
