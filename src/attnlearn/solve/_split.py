"""The three-way split *fit / select / certify*, made before anything else.

*fit* is what learning sees; *select* judges head counts, starts and stopping; *certify* is read once, after the
answer is frozen. The unit is the sequence, or the group of sequences (one document) when groups are given: rows
of one sequence are never independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from attnlearn._errors import require
from attnlearn._types import ArrayLike
from attnlearn.solve._calibration import CERTIFY_FRACTION, FEWEST_UNITS, SELECT_FRACTION, SIDE_MOST


@dataclass(frozen=True)
class Split:
    """Sorted indices of the sequences on each side.

    >>> sides = Split.make(100)
    >>> len(sides.fit), len(sides.select), len(sides.certify)
    (75, 10, 15)
    """

    fit: Int[np.ndarray, "f"]
    select: Int[np.ndarray, "s"]
    certify: Int[np.ndarray, "c"]

    @classmethod
    def make(
        cls,
        num: int,
        *,
        groups: ArrayLike | None = None,
        unit: str = "group",
        seed: int = 0,
        name: str = "x",
    ) -> Split:
        """Split `num` sequences at random; sequences with the same entry in `groups` stay together.

        `unit` says what the entries of `groups` name, and `name` whose sequences they are, for the message when there are
        too few.

        >>> sides = Split.make(60, groups=np.arange(60) // 2)
        >>> bool(set(sides.fit // 2) & set(sides.certify // 2))
        False
        """
        if groups is None:
            members = np.arange(num)
        else:
            groups = np.asarray(groups)
            require(
                groups.shape == (num,), "groups", f"must have one entry per sequence, shape ({num},)", groups
            )
            _, members = np.unique(groups, return_inverse=True)
        units = int(members.max()) + 1 if num else 0
        name = "groups" if groups is not None and unit == "group" else name
        what = "sequences" if groups is None else "groups" if unit == "group" else "different sequences"
        require(units >= FEWEST_UNITS, name, f"must hold at least {FEWEST_UNITS} {what}", units)
        order = np.random.default_rng([seed, 0x5B117]).permutation(units)
        certify = min(SIDE_MOST, max(1, round(CERTIFY_FRACTION * units)))
        select = min(SIDE_MOST, max(1, round(SELECT_FRACTION * units)))
        side = np.zeros(units, np.int8)
        side[order[:certify]] = 2
        side[order[certify : certify + select]] = 1
        return cls(*(np.flatnonzero(side[members] == which) for which in range(3)))


def sequences_in_all(fitted: float) -> float:
    """Sequences of which `fitted` are on the fit side.

    >>> len(Split.make(int(sequences_in_all(75))).fit)
    75
    """
    return min(fitted / (1 - CERTIFY_FRACTION - SELECT_FRACTION), fitted + 2 * SIDE_MOST)
