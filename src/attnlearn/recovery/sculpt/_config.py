"""Every knob of sculpting."""

from __future__ import annotations

from dataclasses import dataclass

from attnlearn._errors import require
from attnlearn.recovery.sculpt import _calibration as calibration

PAPER_STEPS = ("sum", "span", "search")
"""The steps of the paper that ours replace: the sum by correlation, the span by membership queries, all tuples of a net."""


@dataclass(frozen=True)
class SculptConfig:
    """Budget, tolerances and search of `recover(..., method="sculpt")`.

    `num_examples` is the most that is read when examples are drawn on demand; `held_examples` of them are kept in
    memory (crude sum, select, certify, refine). `tolerance` is the first residual tolerance, divided by `shrink`
    every round, at most `max_rounds` times. `window`: a row is used only if its smaller attention weight is at
    least so many tolerances; `rivalry`: and if the second-best pair is so many times worse. `slabs_per_unknown`
    slabs are gathered before a body is built. `narrow` ends the alternation: the body's width across the hull over the
    hull's distance from 0. `refine=False` ends with the answer of the search. `faithful=True` runs the paper's own steps in
    place of ours, for one or two heads (docs/sculpting.md); a tuple of names from `PAPER_STEPS` runs these alone.

    >>> SculptConfig(refine=False).tolerance
    0.05
    """

    num_examples: int = 2_000_000
    held_examples: int = 40_000
    batch: int = 65_536
    tolerance: float = calibration.TOLERANCE
    shrink: float = 3.0
    max_rounds: int = 4
    window: float = calibration.WINDOW
    rivalry: float = calibration.RIVALRY
    slabs_per_unknown: float = calibration.SLABS_PER_UNKNOWN
    narrow: float = calibration.NARROW
    max_heads: int = 4
    net_points: int = 40
    starts: int = 24
    search_sequences: int = 1_500
    refine: bool = True
    faithful: bool | tuple[str, ...] = False

    def __post_init__(self) -> None:
        require(self.num_examples >= 1, "num_examples", "must be at least 1", self.num_examples)
        require(self.held_examples >= 100, "held_examples", "must be at least 100", self.held_examples)
        require(self.batch >= 1, "batch", "must be at least 1", self.batch)
        require(0 < self.tolerance < 0.5, "tolerance", "must lie between 0 and 0.5", self.tolerance)
        require(self.shrink > 1, "shrink", "must exceed 1", self.shrink)
        require(self.max_rounds >= 1, "max_rounds", "must be at least 1", self.max_rounds)
        require(self.window >= 2, "window", "must be at least 2", self.window)
        require(self.rivalry >= 1, "rivalry", "must be at least 1", self.rivalry)
        require(
            self.slabs_per_unknown >= 1, "slabs_per_unknown", "must be at least 1", self.slabs_per_unknown
        )
        require(self.narrow >= 0, "narrow", "must not be negative", self.narrow)
        require(self.max_heads >= 1, "max_heads", "must be at least 1", self.max_heads)
        require(self.net_points >= 3, "net_points", "must be at least 3", self.net_points)
        require(self.starts >= 1, "starts", "must be at least 1", self.starts)
        require(self.search_sequences >= 50, "search_sequences", "must be at least 50", self.search_sequences)
        names = self.faithful if isinstance(self.faithful, tuple) else ()
        known = isinstance(self.faithful, bool | tuple) and set(names) <= set(PAPER_STEPS)
        require(
            known, "faithful", f"must be true, false or a tuple of {', '.join(PAPER_STEPS)}", self.faithful
        )

    def as_paper(self, step: str) -> bool:
        """Whether this step is the paper's.

        >>> SculptConfig(faithful=True).as_paper("span"), SculptConfig(faithful=("sum",)).as_paper("span")
        (True, False)
        """
        return self.faithful if isinstance(self.faithful, bool) else step in self.faithful
