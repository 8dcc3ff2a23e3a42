"""Where fit examples come from: the fit side of examples at hand, or a data model and an oracle, batch by batch.

Reading is by number, so that a resumed run goes on where it stopped, and nothing is kept: memory is one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int

from attnlearn._errors import require
from attnlearn.data import Chunk, Examples
from attnlearn.oracle import Oracle


class Source(Protocol):
    """Batches of fit examples by number; None when there are no more."""

    @property
    def at_hand(self) -> int:
        """How many of the examples at hand it will read, so that none is counted twice."""
        ...

    def read(self, number: int) -> Chunk | None:
        """Batch `number`, counted from 0."""
        ...


@dataclass(frozen=True)
class FitSide:
    """The fit side of examples in memory or on disk.

    >>> from attnlearn.data import as_examples
    >>> side = FitSide(as_examples(np.ones((9, 3, 2)), np.ones((9, 3, 2))), np.arange(5), batch=4)
    >>> [None if (chunk := side.read(i)) is None else len(chunk.x) for i in range(3)]
    [4, 1, None]
    """

    examples: Examples
    indices: Int[np.ndarray, "i"]
    batch: int

    @property
    def at_hand(self) -> int:
        """All that it reads is at hand."""
        return len(self.indices)

    def read(self, number: int) -> Chunk | None:
        """Batch `number`, counted from 0."""
        chosen = self.indices[number * self.batch : (number + 1) * self.batch]
        return self.examples.take(chosen) if len(chosen) else None

    def portion(self, number: int) -> FitSide | None:
        """Batch `number` as a side of its own, for another process."""
        chosen = self.indices[number * self.batch : (number + 1) * self.batch]
        return FitSide(*self.examples.portion(chosen), self.batch) if len(chosen) else None


@dataclass(frozen=True)
class OnDemand:
    """Examples drawn from a data model and answered by an oracle when they are read.

    Every batch has a seed of its own, derived from the run's seed and the batch's number: a data model need not
    be able to start in the middle.

    >>> from attnlearn import AttentionLayer
    >>> from attnlearn.data import Boolean
    >>> source = OnDemand(Boolean(3, 4), AttentionLayer.random(1, 4), seed=0, batch=4, num=6)
    >>> [None if (chunk := source.read(i)) is None else len(chunk.x) for i in range(3)]
    [4, 2, None]
    """

    model: Any
    oracle: Any
    seed: int
    batch: int
    num: int

    @property
    def at_hand(self) -> int:
        """Nothing: every example is drawn anew."""
        return 0

    def read(self, number: int) -> Chunk | None:
        """Batch `number`, counted from 0."""
        size = min(self.batch, self.num - number * self.batch)
        if size <= 0:
            return None
        words = np.random.SeedSequence([self.seed, 0x5C0197, number]).generate_state(1)
        x = self.model.sample(size, seed=int(words[0]))
        require(not isinstance(x, tuple), "x", "must be a data model without labels", self.model)
        asked = (
            self.oracle
            if isinstance(self.oracle, Oracle)
            else Oracle.wrap(self.oracle, batch_size=self.batch)
        )
        return Chunk(x, asked(x), None)
