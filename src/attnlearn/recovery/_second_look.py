"""A second look: the moment of all examples, when the answer that some of them gave leaves a misfit.

The moment stops at as many examples as show every head clearly (`spectral/_moment`). A head much weaker than the others may
be hidden in so few. The answer without it is not exact, and then all examples are asked: if they show more heads, or if
the misfit is no noise, the search is repeated with what they show.

Cost: one moment of all examples after a fit that is not exact, and the phases after it when they are repeated.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from attnlearn.engine import Stop, Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._refining import fitted
from attnlearn.recovery.spectral._count import count
from attnlearn.recovery.spectral._fallback import PhaseFunction
from attnlearn.recovery.spectral._moment import moment
from attnlearn.recovery.spectral._state import Problem, State, looked_at
from attnlearn.recovery.spectral._unmix import unmix


def with_second_look(refine: PhaseFunction) -> PhaseFunction:
    """The phase `refine`, repeated from the moment of all examples if that promises a better fit."""

    @wraps(refine)
    def run(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
        first = refine(problem, state, tools)
        if fitted(first[1]) or not _some_unseen(problem, state):
            return first
        try:
            again = _start_from_all(problem, state, first, tools)
        except Stop:  # what all examples show is no better
            again = None
        if again is None:
            return first[0], first[1] | {"second_look": "no more heads"}
        second = refine(problem, again, tools)
        better = second if second[1]["select_error"] < first[1]["select_error"] else first
        return better[0], better[1] | {"second_look": f"{again.num_heads} heads"}

    return run


def _some_unseen(problem: Problem, state: State) -> bool:
    return state.moment_examples is not None and state.moment_examples < len(
        looked_at(problem, state).split.fit
    )


def _start_from_all(
    problem: Problem, state: State, first: tuple[State, dict[str, Any]], tools: Tools
) -> State | None:
    """The start for refine that all examples give; None when they show no more than some of them did."""
    whole, _ = moment(problem, state, tools, every=True)
    whole, _ = count(problem, whole, tools)
    if whole.num_heads == state.num_heads and first[1]["select_error"] <= calibration.MISFIT:
        return None
    return unmix(problem, whole, tools)[0]
