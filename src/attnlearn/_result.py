"""One result shape for recovery, queries, compression and training.

A `Solution` is what a run learned (`layer`), how it ended (`outcome`), what is established (`certificate`),
how each phase went (`phases`) and figures by name (`stats`). Outcomes are the message: each carries its remedy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from attnlearn._certificate import Certificate, jsonable


class Outcome(Enum):
    """How a run ended; `.remedy` says what to do about it.

    >>> Outcome.TOO_FEW_EXAMPLES.remedy
    'give more examples: stats["examples_needed"] estimates how many'
    """

    RECOVERED = "every head was recovered; nothing to do"
    TRAINED = "training finished; the certificate says which guarantees hold for this run"
    COMPRESSED = (
        "a layer with fewer heads, as close to its source as the certificate says; more heads come closer"
    )
    BELOW_NOISE_FLOOR = (
        "the answer is as exact as the noise in the outputs allows: give cleaner outputs or more examples"
    )
    TOO_FEW_EXAMPLES = 'give more examples: stats["examples_needed"] estimates how many'
    TOKENS_DEGENERATE = (
        "the tokens vary in too few directions, or depend on each other: give more varied tokens"
    )
    HEADS_INDISTINGUISHABLE = (
        "two heads, or two layers, cannot be told apart on these tokens: use tokens that are independent of each other; "
        'stats["rival"] holds the other layer where one was found'
    )
    PROJECTIONS_CANCEL = (
        "the projections of the heads cancel in the sum: use chosen queries or the spectral route"
    )
    TOO_MANY_HEADS = (
        "m (k - 1) > d_out: no row of outputs can prove that all heads agree; use the spectral route, chosen "
        "queries, or shorter sequences"
    )
    HEADS_UNBALANCED = (
        "one head's scores or projection are so much smaller than another's that agreement of all heads cannot be "
        "seen: use the spectral route or chosen queries"
    )
    HEADS_COHERENT = (
        "the scores or the projections of two heads are nearly parallel, so that rows in which all heads agree do not "
        "tell them apart: use the spectral route or chosen queries"
    )
    LOW_EFFECTIVE_RANK = "a head's scores or projection have effective rank near one: use chosen queries"
    ATTENTION_TOO_WEAK = (
        "attention hardly differs from a plain average on these tokens: use larger tokens or more examples"
    )
    SATURATED = "attention is nearly one-hot on these tokens: use smaller tokens"
    NOT_ATTENTION = (
        'no attention layer was found that explains the outputs: stats["diagnosis"] names the likeliest cause; '
        "if you know the number of heads, give it"
    )
    BUDGET_SPENT = (
        "the budget of examples, queries or steps is used up: raise it and resume from the checkpoint"
    )
    INTERRUPTED = "the run was interrupted: resume it from the checkpoint"
    ORACLE_FAILED = "the oracle stopped answering properly: mend it and resume from the cache"
    NUMERICAL_FAILURE = "a phase produced numbers that are not finite: rescale the tokens or use float64"
    NOT_ESTABLISHED = "the answer fits, but not every claim of the certificate is established: see its checks"

    @property
    def remedy(self) -> str:
        """What the user can do about this outcome."""
        return self.value

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Phase:
    """One phase of a run: its name, its time and the evidence it left.

    >>> Phase("count", 0.5, {"heads": 8}).evidence["heads"]
    8
    """

    name: str
    seconds: float
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """What a run learned, how it ended and what is established.

    >>> solution = Solution.failed(Outcome.ATTENTION_TOO_WEAK)
    >>> solution.certified, solution.layer is None
    (False, True)
    """

    layer: Any
    outcome: Outcome
    certificate: Certificate = field(default_factory=Certificate)
    phases: tuple[Phase, ...] = ()
    stats: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def failed(cls, outcome: Outcome, phases: tuple[Phase, ...] = (), **stats: Any) -> Solution:
        """A solution without a layer and without a certificate."""
        return cls(None, outcome, Certificate(), phases, stats)

    @property
    def certified(self) -> bool:
        """Whether the run ended well and every claim of its certificate is established."""
        ended_well = self.outcome in (Outcome.RECOVERED, Outcome.TRAINED, Outcome.COMPRESSED)
        return ended_well and self.certificate.certified

    @property
    def remedy(self) -> str:
        """What the user can do: `stats["remedy"]` where the run knows more than its outcome says."""
        known = self.stats.get("remedy")
        return known if isinstance(known, str) else self.outcome.remedy

    def phase(self, name: str) -> Phase:
        """The last phase with this name."""
        return next(phase for phase in reversed(self.phases) if phase.name == name)

    def to_json(self, layer_path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """The result as JSON, following the schema that ships with the package.

        >>> Solution.failed(Outcome.INTERRUPTED).to_json()["schema"]
        'attnlearn/solution'
        """
        from attnlearn._serialize import solution_json

        return solution_json(self, layer_path)

    def save_json(
        self, path: str | os.PathLike[str], layer_path: str | os.PathLike[str] | None = None
    ) -> None:
        """Write `to_json` to a file that appears whole or not at all."""
        from attnlearn._files import write_json

        write_json(path, self.to_json(layer_path))

    def frame(self):
        """The phases as a pandas data frame (needs the extra `report`)."""
        import pandas as pd

        return pd.DataFrame(
            [{"phase": p.name, "seconds": p.seconds, **jsonable(p.evidence)} for p in self.phases]
        )

    def __str__(self) -> str:
        from attnlearn._serialize import solution_text

        return solution_text(self)

    def __repr__(self) -> str:
        return f"Solution(outcome={self.outcome.name}, certified={self.certified}, layer={self.layer!r})"

    def _repr_html_(self) -> str:
        from attnlearn._serialize import solution_html

        return solution_html(self)
