"""Phase 6: the hull of the heads at the end of the alternation, and the outcome when it cannot be one.

See `_hull` for the mathematics. The count from the singular values is cross-checked by linear programs: K must be
wide along every direction of the hull and narrow across it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from attnlearn.engine import Stop, Tools
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._carve import body_of, find_hull, measured_widths, slabs_at_end
from attnlearn.recovery.sculpt._hull import half_disagreement
from attnlearn.recovery.sculpt._state import Problem, State


def span(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The affine hull and the number of heads; evidence: singular values, gaps, widths, error indicator."""
    slabs = slabs_at_end(problem, state)
    hull, gaps = find_hull(problem, slabs)
    heads = len(hull.directions) + 1
    body, missed = body_of(state, slabs, hull, calibration.FINAL_BODY_SLABS)
    widths = measured_widths(body, hull, tools.rng("widths"))
    along, across = widths["widths_along"], widths["widths_across"]
    shape = (-1, state.root.shape[1])
    evidence: dict[str, Any] = {
        "num_heads": heads,
        "gaps": gaps,
        "singular_values": hull.singular_values[: calibration.SHOWN_SINGULAR_VALUES],
        "slabs": len(slabs.offsets),
        "missed_by_hull": missed,
        "dropped_by_body": body.dropped,
        "inflation": body.inflation,
        "hull_error": half_disagreement(slabs, heads),
        "widths_agree": bool(not along or min(along) > calibration.WIDER * max(across)),
        **widths,
    }
    tokens, out_dim = problem.examples.tokens, problem.examples.out_dim
    state = dataclasses.replace(
        state,
        num_heads=heads,
        base=hull.base.reshape(shape),
        directions=hull.directions.reshape(heads - 1, *state.minimum_norm.shape),
    )
    if heads * (tokens - 1) > out_dim:
        evidence |= {"condition": "m (k - 1) <= d_out", "left": heads * (tokens - 1), "right": out_dim}
        raise Stop("TOO_MANY_HEADS", evidence, state)
    if not np.isfinite(hull.base).all():
        raise Stop("HEADS_INDISTINGUISHABLE", evidence, state)
    return state, evidence


def may_have_more(problem: Problem, state: State) -> bool:
    """Whether one head more is neither excluded by the caller nor by m (k - 1) <= d_out."""
    more = state.num_heads + 1
    allowed = problem.num_heads is None and more <= problem.config.max_heads
    return allowed and more * (problem.examples.tokens - 1) <= problem.examples.out_dim


def with_one_more(problem: Problem, state: State) -> Problem:
    """The problem of one head more than were counted: where slabs are few, the first clear gap may come too early."""
    return dataclasses.replace(problem, num_heads=state.num_heads + 1)
