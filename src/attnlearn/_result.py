"""One result shape for recovery, queries, compression and training.

A `Solution` is what a run learned (`layer`), how it ended (`outcome`), what is established (`certificate`),
how each phase went (`phases`) and figures by name (`stats`). `achieved` decides whether a run raises, which exit code a
command has and which badge a report shows; `verdict` is the one text that all three print.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from attnlearn._certificate import Certificate, jsonable
from attnlearn._errors import named
from attnlearn._outcome import Outcome as Outcome


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
        return self.outcome.ended_well and self.certificate.certified

    @property
    def achieved(self) -> bool:
        """Whether the run did what was asked for: certified, or its `target` is met.

        >>> from attnlearn import Claim
        >>> Solution(None, Outcome.ON_TARGET, Certificate((Claim("C1", "error <= 1e-3", True),))).achieved
        True
        """
        on_target = self.outcome is Outcome.ON_TARGET
        return self.certified or (on_target and any(claim.established for claim in self.certificate.claims))

    @property
    def verdict(self) -> str:
        """What happened in words: the figures that are known, the cause of a failure, and what to do about it.

        >>> Solution.failed(Outcome.SATURATED).verdict
        'No layer was learned: attention is nearly one-hot on these tokens. What to do: use smaller tokens.'
        """
        from attnlearn._serialize import outline
        from attnlearn._verdict import verdict

        return verdict(outline(self)).text

    @property
    def remedy(self) -> str:
        """What the user can do: `stats["remedy"]` where the run knows more than its outcome says."""
        known = self.stats.get("remedy")
        return known if isinstance(known, str) else self.outcome.remedy

    def phase(self, name: str) -> Phase:
        """The last phase with this name."""
        return named(self.phases, "name", name)

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
        from attnlearn._screen import solution_text

        return solution_text(self)

    def __repr__(self) -> str:
        ended = f"outcome={self.outcome.name}, achieved={self.achieved}, certified={self.certified}"
        return f"Solution({ended}, layer={self.layer!r})"

    def _repr_html_(self) -> str:
        from attnlearn._serialize import solution_html

        return solution_html(self)
