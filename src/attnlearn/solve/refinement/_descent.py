"""Descent: Levenberg-Marquardt steps on one set of examples, with W and b eliminated.

Cost: per outer step one linearization and one product per inner step; per trial one elimination, and half a product after the first.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from attnlearn._arrays import namespace
from attnlearn.scores import Preconditioner, Scores
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import Chunks
from attnlearn.solve._deadline import passed
from attnlearn.solve._linearize import Linearization, linearize
from attnlearn.solve._precondition import precondition
from attnlearn.solve._regress import Fit, eliminate
from attnlearn.solve._step import Step, gauss_newton_step, written_out
from attnlearn.solve.refinement._config import RefineConfig
from attnlearn.solve.refinement._precision import Precision
from attnlearn.solve.refinement._rank import RankControl
from attnlearn.solve.refinement._stopping import reason_to_stop
from attnlearn.solve.refinement._trace import Trace


class Progress(NamedTuple):
    """Where a descent is: scores, the W and b that fit best, a preconditioner, and what the last step won and had promised."""

    scores: Scores
    fit: Fit
    by: Preconditioner | None = None
    shrink: float = 0.0
    promised: float = 1.0


class Descended(NamedTuple):
    """Where a descent ended and why; `residual` is relative to the spread of the outputs."""

    scores: Scores
    fit: Fit
    residual: float
    stop: str


class Descent:
    """The steps of one call of `refine`: the damping is kept from one set of examples to the next.

    `causal` is a flag or a mask (`Visible`).
    """

    def __init__(self, causal: Any, config: RefineConfig, trace: Trace) -> None:
        self.causal, self.config, self.trace, self.damping = causal, config, trace, config.damping
        self.asked_at: int | None = None
        """Inner steps of the solve after which more examples were asked for last."""

    def fit(self, scores: Scores, chunks: Chunks, scale: float, final: bool) -> Descended:
        """Descend on these examples until there is a reason to stop."""
        precision, rank = Precision(chunks, self.config.float64_solves), RankControl(self.config.lower)
        now = self._restarted(scores.astype(chunks.dtype), precision)
        while True:
            residual = float(np.sqrt(now.fit.cost / scale))
            stop = reason_to_stop(
                self.config, self.trace, residual, now.shrink, now.promised, precision.eps, final
            )
            changed = rank.changed(now.scores, residual, now.shrink, stop)
            if changed is not None:
                now = self._restarted(changed.astype(chunks.dtype), precision)
            elif precision.doubts_solves(residual, now.shrink, stop):
                precision.solves = chunks
                now = self._restarted(now.scores, precision)
            elif precision.doubts_residuals(residual, stop):
                precision.residuals = chunks
                fit = eliminate(now.scores, chunks, self.causal, near=now.fit)
                now = now._replace(fit=fit, shrink=0.0, promised=1.0)
            elif stop:
                return Descended(now.scores, now.fit, residual, stop)
            else:
                now = self._stepped(now, precision, residual, scale)
                if not (final or rank.higher) and self._wants_more(now):
                    residual = float(np.sqrt(now.fit.cost / scale))
                    return Descended(now.scores, now.fit, residual, "ill_conditioned")

    def _restarted(self, scores: Scores, precision: Precision) -> Progress:
        chunks = precision.residuals
        return Progress(scores, eliminate(scores.astype(chunks.dtype), chunks, self.causal))

    def _wants_more(self, now: Progress) -> bool:
        """Whether the step that was just accepted took so many inner steps that more examples may save some.

        Where the last ones saved none, as on tokens of a few words, the tokens are to blame, and further ones only cost time.
        """
        inner, before = self.trace.steps[-1]["inner"], self.asked_at
        if (
            np.isnan(now.shrink)
            or inner < calibration.MANY_PRODUCTS
            or (before is not None and inner >= before)
        ):
            return False
        self.asked_at = inner
        return True

    def _stepped(self, now: Progress, precision: Precision, residual: float, scale: float) -> Progress:
        """Progress after a step that decreases the residual; with a `shrink` of NaN where none does."""
        at = linearize(now.scores, now.fit.linear, now.fit.factor, precision.solves, self.causal)
        by = now.by
        if by is None or residual > calibration.DIGIT or not by.serves(residual):
            by = precondition(at, residual=residual)
        now = now._replace(by=by)
        found = self._damped_step(now, at, by, precision.residuals, residual, scale)
        return now._replace(shrink=np.nan) if found is None else found

    def _damped_step(
        self,
        now: Progress,
        at: Linearization,
        by: Preconditioner,
        chunks: Chunks,
        residual: float,
        scale: float,
    ) -> Progress | None:
        """Raise the damping until a step decreases the residual; None when none does."""
        fit, norm = now.fit, max(now.fit.cost, np.finfo(np.float64).tiny) ** 0.5
        rest = fit.rest.derive(_scaled, given=(norm, at.chunks.dtype))
        accuracy = self._accuracy(residual, at.chunks.dtype)
        damping, raise_by = self.damping, 1 / calibration.ENOUGH_SHARE
        least = calibration.in_precision(calibration.SOLVED, np.float32)
        most, deadline = self.config.max_inner, self.config.deadline
        matrix, space = written_out(at, by, most, deadline), None
        while damping * least <= 1:
            self.trace.step_began = time.perf_counter()
            step = gauss_newton_step(at, by, rest, damping, accuracy, most, deadline, matrix, space)
            space = step.space
            if passed(deadline):
                return None
            moved, new = self._attempt(now, step, norm, chunks, anew=at.chunks is chunks)
            promised = 2 * step.predicted
            ratio = (1 - new.cost / fit.cost) / promised if promised > 0 else np.nan
            accepted = bool(new.cost < fit.cost)
            self.trace.note(
                step, float(np.sqrt(new.cost / scale)), damping=float(damping), ratio=float(ratio),
                accepted=accepted, precision=chunks.dtype.name, solved=at.chunks.dtype.name,
            )  # fmt: skip
            if accepted:
                self.damping = damping * damping_factor(ratio)
                return Progress(moved, new, by, float(np.sqrt(new.cost / fit.cost)), promised)
            if promised <= calibration.NEGLIGIBLE**2 or len(self.trace.steps) >= self.config.max_steps:
                return None
            damping, raise_by = max(damping, least) * raise_by, raise_by / calibration.HALVED
        return None

    def _accuracy(self, residual: float, dtype: np.dtype) -> float:
        """Relative accuracy of the inner solves."""
        spare = (
            calibration.HALVED * self.config.tolerance / residual if self.config.stop_at_tolerance else 0.0
        )
        least = calibration.in_precision(calibration.SOLVED, dtype)
        return min(calibration.DIGIT, max(residual, spare, least))

    def _attempt(
        self, now: Progress, step: Step, norm: float, chunks: Chunks, anew: bool
    ) -> tuple[Scores, Fit]:
        """The scores after a step, and W and b for them: `anew`, or corrected from those before it."""
        scores, fit = now.scores, now.fit
        moved = scores.moved(scores.shaped(norm * step.scores.flat().astype(scores.dtype)))
        if anew:  # derivatives in this precision want P^T P of these scores
            return moved, eliminate(moved.astype(chunks.dtype), chunks, self.causal)
        near = fit._replace(linear=fit.linear + norm * np.asarray(step.linear, fit.linear.dtype))
        return moved, eliminate(moved, chunks, self.causal, near=near)


def _scaled(rest: np.ndarray, norm: float, dtype: np.dtype) -> np.ndarray:
    xp = namespace(rest)
    return xp.astype(rest / norm, getattr(xp, dtype.name))


def damping_factor(ratio: float) -> float:
    """How the damping changes after a step that kept the share `ratio` of what the linear model promised.

    >>> [damping_factor(ratio) for ratio in (0.1, 0.5, 0.9)]
    [3.0, 1.0, 0.1]
    """
    if ratio > 1 - calibration.ENOUGH_SHARE:
        return calibration.DIGIT
    return calibration.FAR_MORE if ratio < calibration.ENOUGH_SHARE else 1.0
