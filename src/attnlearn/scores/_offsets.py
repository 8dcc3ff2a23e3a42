"""Which numbers of a head's table a pair of tokens takes, by its offset D = p_b - p_a.

A table is linear in its numbers: the bias at offset D is a row of `design(D)` times the numbers of the head.

| kind | numbers of a head | row of the design |
|---|---|---|
| `table` | one for each offset from -reach to reach; beyond, the last | one 1 |
| `buckets` | T5's: exact near offsets, then logarithmic ones up to `reach` | one 1 |
| `slope` | one: ALiBi's | -|D| |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attnlearn._errors import require

KINDS = ("table", "buckets", "slope")


@dataclass(frozen=True)
class Offsets:
    """How offsets choose among the numbers of a table.

    >>> Offsets("buckets", reach=128, number=32, both=False).numbers
    32
    >>> Offsets("slope").design(np.array([-2, 0])).tolist()
    [[-2.0], [-0.0]]
    """

    kind: str
    reach: int = 1
    number: int = 0
    both: bool = True

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "kind", f"must be one of {', '.join(KINDS)}", self.kind)
        require(self.reach >= 1, "reach", "must be >= 1", self.reach)
        least = 4 if self.both else 2
        good = self.kind != "buckets" or (self.number >= least and self.reach > self._exact())
        require(
            good, "number", f"must be >= {least} buckets, with a reach beyond the exact ones", self.number
        )

    @property
    def numbers(self) -> int:
        """Numbers of a head."""
        return {"table": 2 * self.reach + 1, "buckets": self.number, "slope": 1}[self.kind]

    @property
    def used(self) -> np.ndarray:
        """Which numbers some offset takes: of T5's two sides the one of later keys has no offset 0."""
        found = np.ones(self.numbers, bool)
        if self.kind == "buckets" and self.both:
            found[self.number // 2] = False
        return found

    @property
    def free(self) -> int:
        """Numbers of a head that inputs can show."""
        return int(self.used.sum()) - self.constant

    @property
    def constant(self) -> bool:
        """Whether some numbers add one constant to all offsets, which no softmax shows."""
        return self.kind != "slope"

    def centred(self, table: np.ndarray) -> np.ndarray:
        """Numbers (m, numbers) without the invisible constant, zero where no offset takes them."""
        if not self.constant:
            return table
        used = self.used
        return np.where(used, table - table[:, used].mean(axis=1, keepdims=True), 0).astype(table.dtype)

    def design(self, offsets: np.ndarray) -> np.ndarray:
        """Rows (len, numbers) of what the numbers are multiplied by at these offsets."""
        offsets = np.asarray(offsets)
        if self.kind == "slope":
            return -np.abs(offsets.astype(np.float64))[:, None]
        whole = bool(np.all(offsets == np.round(offsets)))
        require(whole, "positions", f"must be whole numbers for a {self.kind} by offset", offsets)
        return np.eye(self.numbers)[self._index(offsets.astype(np.int64))]

    def _index(self, offsets: np.ndarray) -> np.ndarray:
        if self.kind == "table":
            return np.clip(offsets, -self.reach, self.reach) + self.reach
        half = self.number // 2 if self.both else self.number
        far = np.abs(offsets) if self.both else -np.minimum(offsets, 0)
        exact = self._exact()
        # In float32, as models do it: at a power of two rounding decides the bucket.
        ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact)) / math.log(
            self.reach / exact
        )
        large = np.minimum(exact + (ratio * (half - exact)).astype(np.int64), half - 1)
        found = np.where(far < exact, far, large)
        return found + half * (offsets > 0) if self.both else found

    def _exact(self) -> int:
        return (self.number // 2 if self.both else self.number) // 2


def alibi_slopes(num_heads: int) -> np.ndarray:
    """ALiBi's own slopes: a geometric sequence for a power of two, and every second one of the next for the rest.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    near = 2 ** math.floor(math.log2(num_heads))
    first = 2.0 ** (-8.0 / near * np.arange(1, near + 1))
    rest = 2.0 ** (-4.0 / near * np.arange(1, 2 * (num_heads - near) + 1, 2))
    return np.concatenate([first, rest])
