"""The theorem as a list of phases.

crude sum   a first S, by regression on rows that look at one token                          (phase 1)
carve       recognise agreeing rows, cut the body, take its minimum-norm point, refine S,
            with a smaller tolerance every round                                             (phases 2 to 5)
span        the affine hull of the heads, and their number                                   (phase 6)
search      which points of the hull are the heads; W_i by least squares                     (phase 7)
refine      Gauss-Newton on everything                                                       (phase 8)
recheck     every kept slab again, with the true singular values
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from attnlearn._errors import AttnlearnError
from attnlearn.engine import Stop, Tools
from attnlearn.recovery._calibration import TARGET_MARGIN
from attnlearn.recovery._refining import fitted, refine_phase
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._carve import carve
from attnlearn.recovery.sculpt._config import SculptConfig
from attnlearn.recovery.sculpt._diagnose import broken_condition, fitting_layer
from attnlearn.recovery.sculpt._recheck import recheck
from attnlearn.recovery.sculpt._search import search
from attnlearn.recovery.sculpt._span import may_have_more, span, with_one_more
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.recovery.sculpt._sum import crude_sum

PhaseFunction = Callable[[Problem, State, Tools], tuple[State, dict[str, Any]]]


def sculpt_phases(config: SculptConfig) -> list[tuple[str, PhaseFunction]]:
    """The phases in order.

    >>> [name for name, _ in sculpt_phases(SculptConfig(refine=False))]
    ['crude sum', 'carve', 'span', 'search', 'recheck']
    """
    phases: list[tuple[str, PhaseFunction]] = [
        ("crude sum", crude_sum),
        ("carve", partial(carve, attempt=attempt_target)),
        ("span", unless_reached(span)),
        ("search", unless_reached(judged_search)),
    ]
    if config.refine:
        phases.append(("refine", unless_reached(explained_refine)))
    phases.append(("recheck", recheck))
    return phases


def unless_reached(phase: PhaseFunction) -> PhaseFunction:
    """Skip a phase when the target is reached already."""

    @wraps(phase)
    def run(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
        return (state, {"skipped": "target reached"}) if state.reached else phase(problem, state, tools)

    return run


def judged_search(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """Search among the heads that the slabs show, and among one more as long as that explains select examples better.

    Notes whether the answer reaches the target on the select side, and the evidence of the wider hull.
    """
    state, info = search(problem, state, tools)
    tried = {state.num_heads: info["select_error"]}
    while info["select_error"] > calibration.UNEXPLAINED and may_have_more(problem, state):
        wider, hull = span(with_one_more(problem, state), state, tools)
        wider, found = search(problem, wider, tools)
        tried[wider.num_heads] = found["select_error"]
        if found["select_error"] > calibration.ONE_MORE_PAYS * info["select_error"]:
            break
        state, info = wider, found | {"span": hull}
    info["tried"] = {str(heads): error for heads, error in tried.items()}
    if problem.target is not None:
        reached = info["select_worst"] <= TARGET_MARGIN * problem.target
        state = dataclasses.replace(state, reached=bool(reached))
    return state, info


def explained_refine(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """Refine; when the answer does not fit and another layer does, say which condition that one breaks."""
    state, info = refine_phase(problem, state, tools)
    if fitted(info):
        return state, info
    layer = fitting_layer(problem, state, tools)
    if layer is None:
        return state, info
    broken = broken_condition(problem, state, layer)
    if broken is not None:
        raise Stop(broken.outcome, info | {"examples": state.examples_read} | broken.evidence, state)
    more = {"examples_needed": int(calibration.READ_GROWTH * state.examples_read)}
    raise Stop("TOO_FEW_EXAMPLES", info | {"examples": state.examples_read} | more, state)


def attempt_target(problem: Problem, state: State, tools: Tools) -> State | None:
    """After a round: the answer so far, if it already reaches the target."""
    if problem.target is None:
        return None
    try:
        state, _ = span(problem, state, tools)
        state, _ = judged_search(problem, state, tools)
    except (Stop, AttnlearnError):
        return None
    return state if state.reached else None
