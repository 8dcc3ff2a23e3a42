"""What every row of a table has: a name, when it runs, and three questions.

`suits(problem, signals)`: can it work on these data at all? `wanted(problem, signals, trail)`: is it worth its time after what was
tried before it? Both return None for yes, or the reason why not, which the report shows. `propose` gives a candidate for the fit,
or says what it needs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery._problem import Candidate, Problem, Weights
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import Proposal, Trail


@dataclass(frozen=True)
class Proposer:
    """One row of a table. By default it suits all data and is always wanted."""

    name: str
    when: str
    repeats: ClassVar[bool] = False
    """Whether it is asked again after the fit of its candidate, as long as it is wanted."""
    always: ClassVar[bool] = False
    """Whether it runs also after a fit that leaves nothing to explain."""

    def suits(self, problem: Problem, signals: Signals) -> str | None:
        """None, or why it cannot work on these data."""
        return None

    def wanted(self, problem: Problem, signals: Signals, trail: Trail) -> str | None:
        """None, or why it is not worth its time after what was tried."""
        return None

    @abstractmethod
    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """A candidate, or what it needs."""


@dataclass(frozen=True)
class Given(Proposer):
    """A layer that the caller gave: weights from a file, before quantization, from another run."""

    name: str = "start"
    when: str = "a start is given"
    layer: AttentionLayer | None = None
    rank: int | None = None

    def propose(self, problem: Problem, signals: Signals, trail: Trail, tools: Tools) -> Proposal:
        """The layer that was given."""
        assert self.layer is not None
        weights = Weights.of(self.layer.astype(problem.examples.dtype))
        evidence = {"heads": self.layer.num_heads, "rank": self.layer.dim if self.rank is None else self.rank}
        return Proposal(Candidate(weights, self.rank, self.name), evidence=evidence)
