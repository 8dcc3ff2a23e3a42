"""Phases 2 to 5: sculpt and refine the sum in turn, with a tolerance that falls until the body stops shrinking.

One round: read until enough rows are certified at this tolerance; build the body from the narrowest slabs that the
hull of all of them agrees with; take its minimum-norm point; let that point pick the rows that give the sum again;
measure the body's widths along and across the hull. The next round has a smaller tolerance, hence narrower slabs. It
ends when the body is narrow enough across the hull, no longer shrinks, or no examples are left; the round with the
narrowest body counts.

Evidence of every round: slabs, half-spaces, slabs dropped, widths, gaps of the singular values, the hull's error
indicator, the estimated error of the sum, examples read. Cost: one pass over the examples in all, and a few dozen
linear programs. Stops with TOO_FEW_EXAMPLES when the first body cannot be built, SATURATED when the reason is that
one token takes all in nearly every row, or the condition that the layer breaks (`_diagnose`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._errors import AttnlearnError
from attnlearn.engine import Stop, Tools
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._body import Body
from attnlearn.recovery.sculpt._certify_rows import (
    Reader,
    explained_alone,
    half_spaces_of,
    pair_rows,
    read_on,
    single_rows,
)
from attnlearn.recovery.sculpt._diagnose import reason_of
from attnlearn.recovery.sculpt._hull import Hull, base_norm, count_heads, fit_hull, half_disagreement
from attnlearn.recovery.sculpt._paper_sum import margin_sum
from attnlearn.recovery.sculpt._slabs import Slabs, slabs_of
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.recovery.sculpt._sum import doubt, refine_sum, sum_of_singles

Attempt = Callable[[Problem, State, Tools], State | None]


def carve(
    problem: Problem, state: State, tools: Tools, attempt: Attempt | None = None
) -> tuple[State, dict[str, Any]]:
    """Alternate between sculpting the body and refining the sum; evidence: one entry per round.

    `attempt` may end it after any round with a state that is good enough already.
    """
    rounds: list[dict[str, Any]] = []
    tolerance = problem.config.tolerance
    best: Any = None
    while len(rounds) < problem.config.max_rounds:
        state, slabs = gather(problem, state, tolerance, tools)
        fewest = calibration.FEWEST_SLABS if best is None else calibration.FEWEST_AGAIN
        if slabs is None or len(slabs.offsets) < fewest * unknowns(state):
            if best is None:
                raise _nothing_to_carve(problem, state, slabs, tolerance, tools)
            break
        try:
            state, info = one_round(problem, state, slabs, tools)
        except AttnlearnError:
            if best is None:
                raise _nothing_to_carve(problem, state, slabs, tolerance, tools) from None
            break
        rounds.append({"tolerance": tolerance, "examples": state.examples_read} | info)
        tools.progress.update(residual=info["hull_error"])
        state = dataclasses.replace(state, tolerance=tolerance)
        done = None if attempt is None else attempt(problem, state, tools)
        if done is not None:
            return done, {"rounds": rounds, "tolerance": tolerance, "examples": state.examples_read}
        shrinking = best is None or info["width"] <= calibration.STILL_SHRINKING * best["width"]
        best = rounds[-1] if best is None else min(best, rounds[-1], key=lambda entry: entry["width"])
        if not shrinking or (len(rounds) > 1 and info["width"] <= problem.config.narrow):
            break
        tolerance /= problem.config.shrink
    state = dataclasses.replace(state, tolerance=float(best["tolerance"]))
    return state, {"rounds": rounds, "tolerance": state.tolerance, "examples": state.examples_read}


def unknowns(state: State) -> int:
    """Entries of [Theta; c^T]."""
    rank = state.root.shape[1]
    return rank * (rank + 1)


def gather(problem: Problem, state: State, tolerance: float, tools: Tools) -> tuple[State, Slabs | None]:
    """Read batches until enough slabs are certified at this tolerance, or nothing is left to read.

    A later round may read no more than a few times what was read before it: a smaller tolerance must pay. In the first
    one, a sum that is still doubtful is taken again from the rows of one token, whenever twice as much was read.
    """
    need = problem.config.slabs_per_unknown * unknowns(state)
    first = state.minimum_norm is None
    again = first and not problem.config.as_paper("sum")
    most = np.inf if first else calibration.READ_GROWTH * state.examples_read
    reader, slabs, looked = Reader(problem, state, tools.engine), None, 0
    while True:
        if state.pair_tokens is not None:
            slabs = slabs_of(state, pair_rows(state), tolerance, problem.config)
            if len(slabs.offsets) >= need or state.examples_read >= most:
                return state, slabs
        before = state.batches_read
        state = read_on(state, reader, min(1 + before // 10, calibration.STRIDE))
        if state.batches_read == before:
            return state, slabs
        if again and doubt(state) > calibration.SUM_DOUBT and state.batches_read >= 2 * looked:
            looked, state = state.batches_read, sum_of_singles(state, single_rows(state))
            reader = Reader(problem, state, tools.engine)


def one_round(problem: Problem, state: State, slabs: Slabs, tools: Tools) -> tuple[State, dict[str, Any]]:
    """Body, minimum-norm point, widths, and the sum again."""
    hull, gaps = find_hull(problem, slabs)
    body, missed = body_of(state, slabs, hull, calibration.BODY_SLABS)
    point = body.minimum_norm_point()
    state = dataclasses.replace(state, minimum_norm=point.reshape(-1, state.root.shape[1]))
    widths = measured_widths(body, hull, tools.rng("widths"))
    info = {
        "slabs": len(slabs.offsets),
        "half_width": float(np.median(slabs.widths)),
        "missed_by_hull": missed,
        "dropped_by_body": body.dropped,
        "half_spaces": len(body.half_spaces.thresholds),
        "half_spaces_used": body.half_spaces_used,
        "inflation": body.inflation,
        "gaps": gaps,
        "num_heads": len(hull.directions) + 1,
        "hull_error": half_disagreement(slabs, len(hull.directions) + 1),
        "minimum_norm": float(np.linalg.norm(point)),
        "width": max(widths["widths_across"]) / base_norm(hull),
        **widths,
    }
    if problem.config.as_paper("sum"):
        state, info["sum"] = margin_sum(problem, state)
    else:
        state, info["sum"] = refine_sum(state, single_rows(state))
    info["sum_error"] = doubt(state)
    return state, info


def find_hull(problem: Problem, slabs: Slabs) -> tuple[Hull, list[float]]:
    """The hull of the given or the inferred number of heads."""
    if problem.num_heads is not None:
        hull = fit_hull(slabs, problem.num_heads)
        return hull, [hull.gap]
    counted = count_heads(slabs, problem.config.max_heads)
    return counted.hull, counted.gaps


def body_of(state: State, slabs: Slabs, hull: Hull, per_unknown: float) -> tuple[Body, int]:
    """The body of narrow and varied slabs among those that the hull agrees with, and how many it misses."""
    agreed = np.flatnonzero(hull.weights >= 1)
    missed = len(slabs.offsets) - len(agreed)
    most = int(per_unknown * unknowns(state))
    chosen = agreed[_varied(slabs.take(agreed), most)]
    radius = calibration.RADIUS * float(np.abs(hull.base).max())
    cuts = half_spaces_of(
        state, single_rows(state), hull.base, int(calibration.HALF_SPACES * unknowns(state))
    )
    return Body.make(slabs.take(chosen), cuts, radius), missed


def _varied(slabs: Slabs, most: int) -> np.ndarray:
    """At most `most` slabs, half of them the narrowest, half spread over the others: the narrowest alone may all be
    blind to some direction."""
    order = np.argsort(slabs.widths, kind="stable")
    if len(order) <= most:
        return order
    narrow, rest = order[: most // 2], order[most // 2 :]
    spread = rest[np.linspace(0, len(rest) - 1, most - len(narrow)).astype(int)]
    return np.concatenate([narrow, spread])


def measured_widths(body: Body, hull: Hull, rng: np.random.Generator) -> dict[str, Any]:
    """Widths of the body along the hull, and across it in random directions: the same ones every round."""
    across = rng.standard_normal((calibration.WIDTH_DIRECTIONS, body.normals.shape[1]))
    across -= (across @ hull.directions.T) @ hull.directions
    return {
        "widths_along": [body.width(direction) for direction in hull.directions],
        "widths_across": [body.width(direction) for direction in across],
    }


def _nothing_to_carve(
    problem: Problem, state: State, slabs: Slabs | None, tolerance: float, tools: Tools
) -> Stop:
    found = 0 if slabs is None else len(slabs.offsets)
    need = calibration.FEWEST_SLABS * unknowns(state)
    alone = 0 if state.single_query is None else explained_alone(state, single_rows(state))
    evidence = {
        "slabs": found,
        "slabs_needed": int(np.ceil(need)),
        "tolerance": tolerance,
        "examples": state.examples_read,
        "rows_of_one_token": alone,
        "examples_needed": int(np.ceil(state.examples_read * max(2.0, need / max(found, 1)))),
    }
    everywhere = state.batches_read * calibration.ROWS_PER_BATCH
    if alone >= calibration.SATURATED_SHARE * min(everywhere, calibration.MOST_ROWS) and found < 0.01 * need:
        return Stop("SATURATED", evidence, state)
    return reason_of(problem, state, tools, Stop("TOO_FEW_EXAMPLES", evidence, state))


def slabs_at_end(problem: Problem, state: State) -> Slabs:
    """The slabs of the best round, with the sum as it is known now."""
    return slabs_of(state, pair_rows(state), state.tolerance, problem.config)


def kept_slabs(problem: Problem, state: State) -> Slabs:
    """The slabs at the end that the hull of the found number of heads agrees with."""
    slabs = slabs_at_end(problem, state)
    return slabs.take(np.flatnonzero(fit_hull(slabs, state.num_heads).weights >= 1))


def as_vector(theta: Float[np.ndarray, "m d d"], query_bias: Float[np.ndarray, "m d"]) -> np.ndarray:
    """vec [Theta_i; c_i^T], one row per head."""
    return np.concatenate([theta, query_bias[:, None, :]], axis=1).reshape(len(theta), -1)
