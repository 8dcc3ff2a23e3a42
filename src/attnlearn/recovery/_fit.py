"""Fit: the only place that refines a candidate, repairs it and judges the result on the select side.

A first attempt takes a few Gauss-Newton steps from the candidate. Then the repairs are tried in the order of their table
(`_repairs`), each from the best attempt so far, and kept only if the select side says so. The verdict is one of

| verdict | the select side says |
|---|---|
| EXACT | nothing is left to explain but rounding |
| ON_TARGET | every example is within the target |
| NOISE | the error is the same on both sides, and the input explains nothing of it (`solve.noise._test_of_fit`) |
| MISFIT | the error is the same on both sides, and the input explains part of it, or it is large and the steps ran out |
| MEMORISED | the error is far larger than on the fit side |
| UNFINISHED | time was up before the fit ended |

`refine` starts with few examples and adds more; what it may add is bounded here, so that memory depends on the layer and not on
the number of examples. Everything is computed in float64; the answer has the dtype of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools, storable
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Candidate, Problem, Weights, memorised
from attnlearn.recovery._signals import Signals
from attnlearn.scores import Rotary
from attnlearn.solve._batch import (
    Batch,
    exactness_limit,
    example_scale,
    rounding_floor,
    typical_error,
    unit_errors,
)
from attnlearn.solve._unknowns import layer_unknowns
from attnlearn.solve.noise import Fitness, TestOfFit, some_sequences
from attnlearn.solve.refinement import RefineConfig, Refined, refine


@storable
class Verdict(Enum):
    """What the select side says of a fit; the best first."""

    EXACT = "nothing is left to explain"
    ON_TARGET = "every example is within the target"
    NOISE = "an error that the input does not explain"
    MISFIT = "an error that the input explains in part"
    MEMORISED = "the fit side was memorised"
    UNFINISHED = "time was up"

    @property
    def settled(self) -> bool:
        """Whether nothing else need be tried."""
        return self in (Verdict.EXACT, Verdict.ON_TARGET)

    @property
    def explains(self) -> bool:
        """Whether the fit explains the outputs, but for noise."""
        return self.settled or self is Verdict.NOISE


@storable
@dataclass(frozen=True)
class Fit:
    """A refined and judged candidate. `evidence` is for the report and is never read back."""

    weights: Weights
    rank: int | None
    verdict: Verdict
    select_error: float
    fit_error: float
    examples: int
    by: str
    proposed_heads: int
    tentative: bool
    clear_view: int | None
    evidence: dict[str, Any] = field(repr=False)
    stop: str = "noise"
    """Why the last refinement ended."""
    structure: str | None = None
    """The family of features that explains most of a misfit."""
    precision: str | None = None
    """The precision to which an exact fit is exact, where the plateau of its residual shows less than the bits of the outputs."""

    @property
    def layer(self) -> AttentionLayer:
        """The answer."""
        return self.weights.layer

    def leaves_much(self, misfit: float) -> bool:
        """Whether heads may be missing: the fit does not explain the outputs, and its error is large."""
        return not self.verdict.explains and self.select_error > misfit


@dataclass(frozen=True)
class Start:
    """Where an attempt begins: a layer, its rank, the limits of `refine`, and whether it must go on beyond the target."""

    layer: AttentionLayer
    rank: int | None
    limits: dict[str, Any] = field(default_factory=dict)
    every: bool = False
    """Whether every fit example that memory allows is used, not only as many as the unknowns ask for."""
    beyond: bool = False
    """Whether the fit goes on to rounding although a target was given."""


@dataclass(frozen=True)
class Attempt:
    """One call of `refine`, judged."""

    start: Start
    refined: Refined
    error: float
    exact: bool
    enough: bool

    @property
    def layer(self) -> AttentionLayer:
        """The refined layer, in float64."""
        return self.refined.layer

    def then(self, layer: AttentionLayer | None = None, **changes: Any) -> Start:
        """A start from here: the same rank and aim unless `changes` says otherwise."""
        kept = {"rank": self.refined.rank, "beyond": self.start.beyond, "every": self.start.every} | changes
        if kept["every"]:
            kept["limits"] = kept.get("limits", {}) | {"equations_per_unknown": np.inf}
        return Start(self.layer if layer is None else layer, **kept)


class Fitting:
    """The examples of one fit, its attempts so far, and what repairs may use."""

    def __init__(self, problem: Problem, signals: Signals, candidate: Candidate, tools: Tools) -> None:
        self.problem, self.signals, self.tools = problem, signals, tools
        self.proposed, self.tentative = Start(candidate.weights.layer, candidate.rank), candidate.tentative
        examples = problem.examples
        rows = examples.tokens * examples.out_dim
        unknown = layer_unknowns(self.proposed.layer, candidate.rank)
        most = int(np.ceil(calibration.PLENTY * unknown / rows))
        self.side = problem.fit_side(max(most, calibration.LEAST_ROWS))
        self.select, self.scale = problem.select_side(), example_scale(self.side)
        self.tried: list[dict[str, Any]] = []
        self._tested: tuple[Refined | None, Fitness | None] = None, None

    @property
    def every_example(self) -> Batch:
        """As many fit examples as memory allows."""
        examples = self.problem.examples
        one = 8 * examples.tokens * (examples.dim + examples.out_dim)
        return self.problem.fit_side(max(calibration.LEAST_ROWS, calibration.REFINE_BYTES // one))

    def used(self, attempt: Attempt) -> Batch:
        """The examples that an attempt was fitted to; those that it was given, where it was not fitted."""
        side = self.every_example if attempt.start.every else self.side
        used = attempt.refined.used
        return side if used is None else side.take(used)

    def tested(self, attempt: Attempt) -> Fitness:
        """Whether the input explains part of what an attempt leaves of the examples that it was fitted to."""
        if attempt.refined is not self._tested[0]:
            some = self.used(attempt)
            some = some.first(some_sequences(some.num, some.x.shape[1])).astype(np.float64)
            rest = some.visible - attempt.layer(some.x, some.mask)
            self._tested = attempt.refined, TestOfFit(attempt.layer, some)(rest)
        found = self._tested[1]
        assert found is not None
        return found

    def attempt(self, name: str, start: Start) -> Attempt:
        """Refine from `start` and judge the result on the select side."""
        dtype = self.problem.rounded_to
        target = 0.0 if start.beyond else self.problem.target or 0.0
        rounding = 0.0 if dtype == np.float64 else float(np.finfo(dtype).eps) / 2
        wanted = calibration.DIGIT * target
        # Rounding averages out, so the optimum is far closer to the layer than any fit whose residual is as large.
        tolerance = wanted if wanted > rounding else 0.0
        side = self.every_example if start.every else self.side
        config = RefineConfig(
            seed=self.tools.seed,
            tolerance=tolerance,
            stop_at_tolerance=tolerance > 0,
            combine_first=True,
            average=False,
            deadline=self.tools.deadline,
            **start.limits,
        )
        refined = refine(
            start.layer.astype(np.float64),
            np.asarray(side.x, np.float64),  # float32 sums would lose what float32 outputs can tell
            np.asarray(side.y, np.float64),
            mask=side.mask,
            rank=start.rank,
            config=config,
            on_step=lambda step: self.tools.progress.update(residual=step["residual"]),
        )
        found = self.judged(start, refined)
        self.tried.append(
            {
                "repair": name,
                "rank": refined.rank,
                "residual": refined.residual,
                "stop": refined.stop,
                "select_error": found.error,
            }
        )
        return found

    def judged(self, start: Start, refined: Refined) -> Attempt:
        """The attempt with its error on the select side."""
        dtype = self.problem.rounded_to
        layer = refined.layer.astype(self.problem.examples.dtype)
        errors = unit_errors(layer, self.select, self.scale)
        error = typical_error(layer, self.select, self.scale)
        limit = exactness_limit(rounding_floor(layer, self.select, self.scale, dtype), dtype)
        target = 0.0 if start.beyond else self.problem.target or 0.0
        reached = errors.max() <= calibration.TARGET_MARGIN * target
        return Attempt(start, refined, error, error <= limit, bool(error <= limit or reached))

    def verdict(self, attempt: Attempt) -> Verdict:
        """The verdict on a finished attempt, after a test of fit where one is needed."""
        return verdict_of(attempt, lambda: self.tested(attempt).structured)

    def plateau(self, attempt: Attempt) -> bool:
        """Whether float64 outputs are exact to float32: the residual is as large as its rounding, and nothing explains it.

        Cosines of rotary positions that a model makes in float32 are the same for every input, so these may explain it.
        """
        if self.problem.rounded_to != np.float64 or attempt.enough or attempt.refined.stop == "deadline":
            return False
        single = np.dtype(np.float32)
        floor = rounding_floor(attempt.layer, self.select, self.scale, single)
        like = calibration.DIGIT * floor <= attempt.error <= exactness_limit(floor, single)
        return like and (isinstance(attempt.layer.form, Rotary) or not self.tested(attempt).structured)


def verdict_of(attempt: Attempt, structured: Callable[[], bool]) -> Verdict:
    """The verdict on a finished attempt; `structured` says whether the input explains part of its error."""
    refined = attempt.refined
    if attempt.exact:
        return Verdict.EXACT
    if attempt.enough:
        return Verdict.ON_TARGET
    if memorised(refined.residual, attempt.error):
        return Verdict.MEMORISED
    if refined.stop in ("floor", "target"):
        return Verdict.EXACT
    unfinished = refined.stop == "max_steps" and attempt.error > calibration.MISFIT
    return Verdict.MISFIT if unfinished or structured() else Verdict.NOISE
