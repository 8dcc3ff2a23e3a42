"""Search: random starts and Gauss-Newton, where the moment can say nothing.

The moment wants tokens that are independent across positions, or correlated in the separable way that `prepare` models.
Recorded activations often are neither: positions have means and distributions of their own. It wants so many examples that
the heads stand above its noise, and heads that differ from their swaps, as those of rank one do not. Regression minds none
of that: a few equations per unknown do. Heads start from small random scores; the count grows from one until a start
explains the select side. Without that, the run ends as the moment ended it.

Cost: a call of refine per start, so only where it is affordable: few directions, several equations per unknown.
On the two layers of a small transformer trained on digits (d = 32, 4 heads) one start took 6 s of one core; of four
starts with the right count three reached rounding at score standard deviation 0.5, two at 1 and none at 2. On Gaussian
tokens the first start with the right count did in 9 of 9 random layers (d = 12 to 24, two to six heads, a half to a tenth
of the examples that the moment asked for).
What can fail: starts that end in local optima; a count too small by the luck of the starts is refused by certify.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Stop, Tools
from attnlearn.recovery._calibration import EQUATIONS_NEEDED
from attnlearn.recovery._conclude import examples_needed, held, unknowns
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._state import Problem, State, dependent, unmodelled
from attnlearn.recovery.spectral._unmix import from_white
from attnlearn.solve._certify import example_scale, unit_errors
from attnlearn.solve._refine import RefineConfig, refine


def searchable(problem: Problem, state: State, outcome: str) -> bool:
    """Whether the moment failed for want of examples, on heads of rank one, or on tokens that it does not model, and the
    search is affordable."""
    if state.inverse.shape[0] > calibration.SEARCH_DIRECTIONS:
        return False
    if outcome == "LOW_EFFECTIVE_RANK" or unmodelled(problem, state):
        return True
    return outcome == "TOO_FEW_EXAMPLES" and _few(problem, state)


def _few(problem: Problem, state: State) -> bool:
    """Whether the examples are so few that the moment would not show heads which are there."""
    rows = problem.examples.tokens * problem.examples.out_dim
    most = unknowns(_start(problem, state, calibration.SEARCH_HEADS), None)
    return len(problem.split.fit) * rows <= calibration.SEARCH_PLENTY * most


def search(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The first random start that explains the select side, by increasing number of heads."""
    examples, split = problem.examples, problem.split
    fit = held(examples, split.fit[: calibration.SEARCH_EXAMPLES])
    select, scale = held(examples, split.select), example_scale(fit)
    x, y = fit.x.astype(np.float64), fit.y.astype(np.float64)
    config = RefineConfig(
        max_steps=calibration.SEARCH_STEPS,
        max_inner=calibration.SEARCH_INNER,
        tolerance=1e-7,
        seed=tools.seed,
    )
    tried: list[dict[str, Any]] = []
    for start in starts(problem, state, y.size, tools):
        if _settled(tried, start.num_heads):
            continue
        refined = refine(start, x, y, mask=fit.mask, config=config)
        layer = refined.layer.astype(examples.dtype)
        error = float(np.sqrt(np.mean(unit_errors(layer, select, scale) ** 2)))
        tried.append({"heads": start.num_heads, "select_error": error, "steps": len(refined.steps)})
        tools.progress.update(heads=start.num_heads, error=error)
        if error <= calibration.SEARCH_FOUND:
            found = dataclasses.replace(
                state, num_heads=start.num_heads, rank=None, **layer.parameters._asdict()
            )
            return found, {"searched": tried}
    assert state.stopped is not None
    raise Stop(state.stopped, {"searched": tried} | _needed(problem, state, tried), state)


def _settled(tried: list[dict[str, Any]], heads: int) -> bool:
    """Whether two starts with so many heads ended at the same error: others will as well."""
    errors = sorted(entry["select_error"] for entry in tried if entry["heads"] == heads)
    return any(b <= (1 + calibration.SEARCH_AGREE) * a for a, b in itertools.pairwise(errors))


def _needed(problem: Problem, state: State, tried: list[dict[str, Any]]) -> dict[str, int]:
    """Examples that the phase asked for; or, if fewer, those with which the search reaches up to twice the next count."""
    if state.examples_needed is None:
        return {}
    reached = max((entry["heads"] for entry in tried), default=0)
    heads = (
        min(2 * (reached + 1), calibration.SEARCH_HEADS) if problem.num_heads is None else problem.num_heads
    )
    enough = examples_needed(_start(problem, state, heads), problem.examples, None)
    helps = problem.examples.num < enough < state.examples_needed
    return {"examples_needed": enough if helps else state.examples_needed}


def starts(problem: Problem, state: State, equations: int, tools: Tools) -> Iterator[AttentionLayer]:
    """Layers of small random scores on the tokens' support, a few for every count that the equations can tell."""
    most = range(1, calibration.SEARCH_HEADS + 1)
    repeats = calibration.SEARCH_STARTS if dependent(problem, state) else calibration.SEARCH_STARTS // 2
    for heads in most if problem.num_heads is None else (problem.num_heads,):
        rng = tools.rng(f"search {heads}")
        for _ in range(repeats):
            layer = _start(problem, state, heads, rng)
            if unknowns(layer, None) * EQUATIONS_NEEDED > equations:
                return
            yield layer


def _start(
    problem: Problem, state: State, heads: int, rng: np.random.Generator | None = None
) -> AttentionLayer:
    """`heads` heads of small random scores, or of none."""
    r, out = state.inverse.shape[0], problem.examples.out_dim
    white = np.zeros((heads, r, r)) if rng is None else rng.standard_normal((heads, r, r))
    zeros = np.zeros((heads, r)), np.zeros((heads, r, out)), np.zeros(out)
    return AttentionLayer(
        **from_white(state, white * calibration.SEARCH_SCORES / r, *zeros), causal=bool(state.causal)
    )
