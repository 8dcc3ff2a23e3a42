"""The linear route: coordinates on the select side, least squares on the fit side, heads, certificate.

Whether the layer is causal is decided by the select error, unless it is given. The first regression reads `ROWS_PER_FEATURE` rows per feature;
where its residual is not rounding, all fit examples follow. Nothing here depends on a start, so there is nothing to search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._linear import LinearAttentionLayer
from attnlearn._result import Outcome, Solution
from attnlearn._types import LATER, Later
from attnlearn.engine import Tools
from attnlearn.engine._pipeline import Phases
from attnlearn.recovery._conclude import Units, certify_side
from attnlearn.recovery._problem import Problem
from attnlearn.recovery.linear import _calibration as calibration
from attnlearn.recovery.linear._certify import Fitted, certificate, examples_needed, outcome
from attnlearn.recovery.linear._config import LinearConfig
from attnlearn.recovery.linear._features import Coordinates
from attnlearn.recovery.linear._rank import Found, find_heads
from attnlearn.recovery.linear._regress import Regression, regress, residual_of
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve._calibration import EXACT, ROUNDING_SLACK


@dataclass(frozen=True)
class LinearState:
    """What the phases have found: the regression, whether its coordinates were fixed on the select side, and the heads."""

    regression: Later[Regression] = LATER
    separate: bool = False
    found: Later[Found] = LATER


class LinearRoute:
    """The phases of the linear method on one problem, and how what they found is judged."""

    def __init__(self, problem: Problem, units: Units, config: LinearConfig, memory: int | None) -> None:
        _require_memory(problem, config, memory)
        self.problem, self.units, self.config = problem, units, config
        self.select = Batch.of(problem.examples, problem.split.select, units.members)
        self.exact = _exact(self.select)
        self.state = LinearState()
        self.phases: Phases = (("regression", self.regression), ("heads", self.heads))

    def regression(self, _problem: Problem, _state: LinearState, _tools: Tools) -> tuple[LinearState, dict]:
        """Least squares on the distinct monomials."""
        found, separate = _regression(self.problem, self.units, self.config, self.select)
        return LinearState(found, separate), _evidence(found, self.select)

    def heads(self, _problem: Problem, state: LinearState, tools: Tools) -> tuple[LinearState, dict]:
        """The fewest heads with the regression's function."""
        found = find_heads(state.regression, self.select, self.exact, self.problem.num_heads, tools.seed)
        evidence = {
            "heads": found.layer.num_heads,
            "proved": found.fewest,
            "margin": found.margin,
            "select_error": found.error,
        }
        return replace(state, found=found), evidence

    regression.never_saved = heads.never_saved = True  # type: ignore[attr-defined]  # both take seconds

    def layer(self, state: LinearState) -> LinearAttentionLayer | None:
        """The layer, when the heads were found."""
        return None if state.found is None else state.found.layer

    def conclude(self, state: LinearState) -> Solution:
        """One look at the certify side."""
        problem, regression, found = self.problem, state.regression, state.found
        fitted = Fitted(regression, found, problem.examples.dim, state.separate, self.exact)
        scale = example_scale(problem.fit_side(calibration.SCALE_SEQUENCES))
        side = certify_side(problem, self.units.members)
        made = certificate(fitted, side, scale, self.units, problem.target)
        ended = outcome(fitted, made, problem.target)
        stats: dict[str, Any] = {
            "fit_error": regression.error,
            "select_error": found.error,
            "least_squares_error": found.best,
            "features": regression.coordinates.number,
            "rows": regression.rows,
        }
        if ended is Outcome.TOO_FEW_EXAMPLES:
            stats["examples_needed"] = examples_needed(fitted, problem.examples.num)
        if ended is Outcome.NOT_ATTENTION:
            stats["because"] = "the layer is the nearest one without a softmax"
            stats["remedy"] = 'use method="auto" if the attention has a softmax, as that of most models does'
        return Solution(found.layer, ended, made, stats=stats)


def _regression(
    problem: Problem, units: Units, config: LinearConfig, select: Batch
) -> tuple[Regression, bool]:
    """The best regression, and whether its coordinates were fixed on the select side."""
    options = (False, True) if problem.causal is None else (problem.causal,)
    fits: list[tuple[float, Regression, bool]] = []
    for causal in options:
        regression, separate = _stages(problem, units, config, select, causal)
        fits.append((residual_of(regression, select), regression, separate))
        if fits[-1][0] <= _exact(select):
            break
    _, regression, separate = min(fits, key=lambda fit: fit[0])
    return regression, separate


def _stages(
    problem: Problem, units: Units, config: LinearConfig, select: Batch, causal: bool
) -> tuple[Regression, bool]:
    """A regression on some of the fit examples, and on all where it leaves more than rounding."""
    fit = problem.split.fit
    coordinates = Coordinates.fixed_on(select, causal, config.biases)
    separate = coordinates.rank == problem.examples.dim
    if not separate:
        coordinates = Coordinates.fixed_on(
            problem.fit_side(calibration.SCALE_SEQUENCES), causal, config.biases
        )
    first = -(-calibration.ROWS_PER_FEATURE * coordinates.number // problem.examples.tokens)
    regression = regress(coordinates, Batch.of(problem.examples, fit[:first], units.members))
    if first < len(fit) and (residual_of(regression, select) > _exact(select) or not regression.determined):
        regression = regress(coordinates, Batch.of(problem.examples, fit, units.members))
    return regression, separate


def _exact(select: Batch) -> float:
    """Relative error that counts as rounding of the regression: computed in float64, the outputs are known to their dtype."""
    return max(EXACT, ROUNDING_SLACK * float(np.finfo(select.y.dtype).eps))


def _evidence(regression: Regression, select: Batch) -> dict[str, Any]:
    return {
        "features": regression.coordinates.number,
        "rows": regression.rows,
        "causal": regression.coordinates.causal,
        "smallest_eigenvalue": regression.smallest,
        "fit_error": regression.error,
        "select_error": residual_of(regression, select),
    }


def _require_memory(problem: Problem, config: LinearConfig, memory: int | None) -> None:
    d = problem.examples.dim + config.biases
    number = d * problem.examples.dim * (problem.examples.dim + 1) // 2 + config.biases
    needed = calibration.COPIES * 8 * number**2 + 4 * calibration.CHUNK_BYTES
    limit = calibration.MEMORY_MOST if memory is None else memory
    rule = f"must be at least {needed / 1e9:.2f} GB for the {number} features of linear attention at d = {problem.examples.dim}"
    require(needed <= limit, "memory", rule, f"{limit / 1e9:.2f} GB")
