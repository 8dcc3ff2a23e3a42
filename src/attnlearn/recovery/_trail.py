"""The trail: what was measured, what was tried, what was skipped and why, and the best fit so far.

The trail is the state of a run: a checkpoint holds it, and the next step follows from it alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Fit
from attnlearn.recovery._problem import Candidate, Need, Weights
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment import Moment

UNKNOWN = "not attention"
"""What the diagnosis says when no known cause explains a misfit."""


@dataclass(frozen=True)
class Proposal:
    """What a proposer found: a candidate, or what it needs, or neither; and what later proposers may use."""

    candidate: Candidate | None = None
    need: Need | None = None
    moment: Moment | None = None
    body: Any = None
    evidence: dict[str, Any] = field(default_factory=dict)
    unfinished: tuple[Weights, ...] | None = None
    """What was done when time was up; the row is asked again then, and goes on from there."""


@dataclass(frozen=True)
class Trail:
    """Signals (or why there are none), the row of the table that is next, the fits so far, and the needs by proposer.

    >>> Trail().best is None
    True
    """

    signals: Signals | Need | None = None
    row: int = 0
    pending: Candidate | None = None
    fits: tuple[Fit, ...] = ()
    asked: tuple[str, ...] = ()
    needs: dict[str, Need] = field(default_factory=dict)
    moment: Moment | None = None
    body: Any = None
    unfinished: tuple[Weights, ...] = ()

    @property
    def best(self) -> Fit | None:
        """The fit that the run would answer with."""
        return self.best_without("")

    def best_without(self, name: str) -> Fit | None:
        """The best fit that this proposer had no part in."""
        best: Fit | None = None
        for fit in self.fits:
            if fit.by != name and replaces(fit, best):
                best = fit
        return best

    @property
    def settled(self) -> bool:
        """Whether a fit leaves nothing to explain, or is on target."""
        return self.best is not None and self.best.verdict.settled

    @property
    def closed(self) -> str | None:
        """Why no further row is asked; None while something may be found."""
        if self.settled:
            return "the best fit leaves nothing to explain"
        final = next((need for need in self.needs.values() if need.final), None)
        return None if final is None else f"the cause of the misfit is known: {final.cause}"

    @property
    def layer(self) -> AttentionLayer | None:
        """The layer of the best fit, or where there is none the last one of a search that was interrupted."""
        if self.best is not None:
            return self.best.layer
        return self.unfinished[-1].layer if self.unfinished else None

    def by(self, name: str) -> list[Fit]:
        """The fits of one proposer's candidates, in order."""
        return [fit for fit in self.fits if fit.by == name]

    def cause(self) -> str | None:
        """The likeliest cause of a misfit, if one was looked for."""
        found = [need.cause for need in self.needs.values() if need.outcome is Outcome.NOT_ATTENTION]
        return next((cause for cause in found if cause), None)

    def after(self, name: str, found: Proposal, *, again: bool) -> Trail:
        """The trail with what a proposer found; the same row comes next if it is to be asked `again`."""
        needs = self.needs if found.need is None else self.needs | {name: found.need}
        return dataclasses.replace(
            self,
            row=self.row + (not again),
            pending=found.candidate,
            asked=(*self.asked, name),
            needs=needs,
            moment=self.moment if found.moment is None else found.moment,
            body=self.body if found.body is None else found.body,
            unfinished=(),
        )


def replaces(fit: Fit, best: Fit | None) -> bool:
    """Whether a later fit takes the place of the best one.

    A fit whose number of heads was only tried must explain the outputs, and much better than the best one does.
    """
    if fit.verdict.settled:
        return best is None or not best.verdict.settled
    if best is not None and best.verdict.settled:
        return False
    if fit.tentative and not fit.verdict.explains:
        return False
    share = calibration.MUCH_BETTER if fit.tentative else 1.0
    return best is None or fit.select_error < share * best.select_error
