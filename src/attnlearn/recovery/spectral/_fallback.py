"""Fallback: what the phases cannot do is left to a guess and to the search, before them or after.

On tokens that the moment does not model the search comes first, where they vary in few directions, and phases after it have nothing
to do. Otherwise guess and search stand in the place of the last phase: a phase that ends with an outcome leaves it in the state, the
others let it pass, and when neither the guess nor the search explains the examples the run ends with that outcome after all; or
with NOT_ATTENTION, where a search with many heads could not even fit what it was shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any

from attnlearn.engine import Stop, Tools
from attnlearn.recovery._calibration import DIAGNOSED
from attnlearn.recovery._conclude import held
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._guess import guess, guessable, last_step
from attnlearn.recovery.spectral._search import MISFITS, search, searchable
from attnlearn.recovery.spectral._state import Problem, State
from attnlearn.solve._diagnose import diagnose

PhaseFunction = Callable[[Problem, State, Tools], tuple[State, dict[str, Any]]]


def or_search(phase: PhaseFunction) -> PhaseFunction:
    """The search, where the tokens ask for it; the phase, where they do not or where the search finds nothing."""

    @wraps(phase)
    def run(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
        few = state.inverse.shape[0] <= calibration.SEARCH_FIRST
        if not (few and searchable(problem, state, "TOKENS_DEGENERATE")):
            return phase(problem, state, tools)
        try:
            return search(problem, state, tools)
        except Stop as stop:
            state, evidence = stop.state, stop.evidence
        try:
            state, info = phase(problem, state, tools)
        except Stop as stop:
            left = state if stop.state is None else stop.state
            raise Stop(stop.outcome_name, evidence | stop.evidence, left) from None
        return state, evidence | info

    return run


def or_fallback(phase: PhaseFunction, last: bool = False) -> PhaseFunction:
    """A phase that leaves what it fails on to the fallbacks; they take the place of the last."""

    @wraps(phase)
    def run(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
        if state.theta is not None:
            return state, {"skipped": "the search has found heads"}
        evidence: dict[str, Any] = {}
        if state.stopped is None:
            try:
                return phase(problem, state, tools)
            except Stop as stop:
                state = _left(state if stop.state is None else stop.state, stop)
                if not (guessable(problem, state) or searchable(problem, state, stop.outcome_name)):
                    raise _ended(problem, state, stop) from None
                evidence = stop.evidence | {"stopped": stop.outcome_name}
        if not last:
            return state, evidence or {"skipped": state.stopped}
        state, info = _instead(problem, state, tools)
        return state, evidence | info

    return run


def _left(state: State, stop: Stop) -> State:
    """The state without an answer, and with what the phase ended on."""
    nothing = dict.fromkeys(("theta", "w", "query_bias", "output_bias"))
    needed = stop.evidence.get("examples_needed")
    return dataclasses.replace(state, **nothing, stopped=stop.outcome_name, examples_needed=needed)


def _instead(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The answer with the number of heads that the moment suggests, or else a usual one; or that of the search.

    A guess that fits without proving itself gives way to what the search finds.
    """
    values = state.singular_values
    suggested = None if values is None else state.num_heads or last_step(values)
    guessed, evidence = guess(problem, state, tools, suggested or calibration.GUESSED_HEADS)
    assert state.stopped is not None
    if not evidence.get("guess_proved") and searchable(problem, state, state.stopped):
        try:
            found, info = search(problem, state, tools)
            return found, evidence | info
        except Stop as stop:
            state, evidence = stop.state, evidence | stop.evidence
    if guessed is not None:
        return guessed, evidence
    needed = {} if state.examples_needed is None else {"examples_needed": state.examples_needed}
    raise _ended(problem, state, Stop(state.stopped, needed | evidence, state))


def _ended(problem: Problem, state: State, stop: Stop) -> Stop:
    """How a run without an answer ends: as its phase did, or with what the search saw."""
    if state.searched != MISFITS:
        return stop
    sample = held(problem.examples, problem.split.fit[:DIAGNOSED])
    cause = diagnose(sample.x, sample.y, sample.mask, bool(state.causal))
    kept = {name: value for name, value in stop.evidence.items() if name != "examples_needed"}
    return Stop("NOT_ATTENTION", kept | {"diagnosis": cause.to_json()}, state)
