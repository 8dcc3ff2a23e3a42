"""The linear route: coordinates on the select side, least squares on the fit side, heads, certificate.

Whether the layer is causal is decided by the select error, unless it is given. The first regression reads `ROWS_PER_FEATURE` rows per feature;
where its residual is not rounding, all fit examples follow. Nothing here depends on a start, so there is nothing to search.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._result import Outcome, Phase, Solution
from attnlearn.engine import Tools
from attnlearn.recovery._conclude import Units, certify_side
from attnlearn.recovery._problem import Problem, held
from attnlearn.recovery.linear import _calibration as calibration
from attnlearn.recovery.linear._certify import Fitted, certificate, examples_needed, outcome
from attnlearn.recovery.linear._config import LinearConfig
from attnlearn.recovery.linear._features import Coordinates
from attnlearn.recovery.linear._rank import find_heads
from attnlearn.recovery.linear._regress import Regression, regress, residual_of
from attnlearn.solve._calibration import EXACT, ROUNDING_SLACK
from attnlearn.solve._held import Held, example_scale


def learn(
    problem: Problem, units: Units, config: LinearConfig, tools: Tools, memory: int | None = None
) -> Solution:
    """The best linear-attention layer for these examples, with its certificate."""
    _require_memory(problem, config, memory)
    phases: list[Phase] = []
    select = held(problem.examples, problem.split.select, units.members)
    began = time.perf_counter()
    with tools.progress.phase("regression"):
        regression, separate = _regression(problem, units, config, select)
        evidence = _evidence(regression, select)
        tools.progress.update(**evidence)
    phases.append(Phase("regression", time.perf_counter() - began, evidence))
    began = time.perf_counter()
    with tools.progress.phase("heads"):
        exact = _exact(select)
        found = find_heads(regression, select, exact, problem.num_heads, tools.seed)
        fitted = Fitted(regression, found, problem.examples.dim, separate, exact)
        evidence = {
            "heads": found.layer.num_heads,
            "proved": found.fewest,
            "margin": found.margin,
            "select_error": found.error,
        }
        tools.progress.update(**evidence)
    phases.append(Phase("heads", time.perf_counter() - began, evidence))
    return _certified(problem, units, fitted, phases, tools)


def _certified(problem: Problem, units: Units, fitted: Fitted, phases: list[Phase], tools: Tools) -> Solution:
    """One look at the certify side."""
    began = time.perf_counter()
    with tools.progress.phase("certify"):
        scale = example_scale(problem.fit_side(calibration.SCALE_SEQUENCES))
        made = certificate(fitted, certify_side(problem, units.members), scale, units, problem.target)
        ended = outcome(fitted, made, problem.target)
    phases.append(Phase("certify", time.perf_counter() - began, {"outcome": ended.name}))
    regression, found = fitted.regression, fitted.found
    stats: dict[str, Any] = {
        "fit_error": regression.error,
        "select_error": found.error,
        "least_squares_error": found.best,
        "features": regression.coordinates.number,
        "rows": regression.rows,
    }
    if ended is Outcome.TOO_FEW_EXAMPLES:
        stats["examples_needed"] = examples_needed(fitted, problem.examples.num)
    return Solution(found.layer, ended, made, tuple(phases), stats)


def _regression(
    problem: Problem, units: Units, config: LinearConfig, select: Held
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
    problem: Problem, units: Units, config: LinearConfig, select: Held, causal: bool
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
    regression = regress(coordinates, held(problem.examples, fit[:first], units.members))
    if first < len(fit) and (residual_of(regression, select) > _exact(select) or not regression.determined):
        regression = regress(coordinates, held(problem.examples, fit, units.members))
    return regression, separate


def _exact(select: Held) -> float:
    """Relative error that counts as rounding of the regression: computed in float64, the outputs are known to their dtype."""
    return max(EXACT, ROUNDING_SLACK * float(np.finfo(select.y.dtype).eps))


def _evidence(regression: Regression, select: Held) -> dict[str, Any]:
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
