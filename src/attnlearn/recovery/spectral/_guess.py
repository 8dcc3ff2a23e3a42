"""Guess: a number of heads that the moment suggests without showing it, judged by the fit alone.

Where the weakest heads stand a tenth above the noise, the count cannot establish them, but the order of the singular values
often tells: heads fall off in steps, and noise does not. The number at the last such step is worth a refine if the span
explains something and there are equations enough: a fit that leaves nothing to explain proves it, one that leaves a little
on both sides may be right beside noise, and no other is kept. Heads too many turn out idle, or come so close to each other
that nothing is proved; so where there is no step a usual number may do. Heads of rank one, which the moment shows twice, are
refined in the same way.

Cost: an unmixing and a refine, after a moment or a count that would end the run with TOO_FEW_EXAMPLES.
What can fail: a head too few, which leaves a misfit.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from attnlearn.engine import Stop, Tools
from attnlearn.recovery._calibration import EQUATIONS_NEEDED, MISFIT, NEAR_HEADS
from attnlearn.recovery._conclude import memorised, unknowns
from attnlearn.recovery._refining import answer, fitted, refine_phase
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._count import count
from attnlearn.recovery.spectral._remix import remix
from attnlearn.recovery.spectral._state import Problem, State
from attnlearn.recovery.spectral._unmix import unmix
from attnlearn.solve._heads import head_separation

AMBIGUOUS = "LOW_EFFECTIVE_RANK"
"""How `unmix` ends when heads and their swaps are alike. Its answer has some of them twice, which refine undoes."""


def guess(problem: Problem, state: State, tools: Tools, heads: int) -> tuple[State | None, dict[str, Any]]:
    """The refined answer with so many heads; None if it does not fit, or if there is nothing to guess."""
    if not guessable(problem, state):
        return None, {}
    guessing, evidence = dataclasses.replace(problem, num_heads=heads), {"guessed": heads}
    try:
        found, _ = count(guessing, state, tools)
        found, info = unmix(guessing, found, tools)
    except Stop as stop:
        if stop.outcome_name != AMBIGUOUS:
            return None, evidence | {"guess_stopped": stop.outcome_name}
        found, info = stop.state, stop.evidence
    equations = len(problem.split.fit) * problem.examples.tokens * problem.examples.out_dim
    if equations < EQUATIONS_NEEDED * unknowns(answer(found), found.rank):
        return None, evidence | {"guess_stopped": "too few equations"}
    found, fit = refine_phase(problem, found, tools, remix)
    evidence |= {"guess_error": fit["select_error"], "guess_tried": fit["tried"]}
    evidence["guess_proved"] = fitted(fit) and head_separation(answer(found)) >= NEAR_HEADS
    kept = fit["select_error"] <= MISFIT and not memorised(fit["residual"], fit["select_error"])
    return (found, info | evidence) if kept else (None, evidence)


def guessable(problem: Problem, state: State) -> bool:
    """Whether the examples did not suffice to establish a number of heads, and nobody gave one; or whether that number was
    established and its unmixing was not."""
    too_few = state.stopped == "TOO_FEW_EXAMPLES" and problem.num_heads is None
    return state.singular_values is not None and (too_few or state.stopped == AMBIGUOUS)


def last_step(values: np.ndarray) -> int | None:
    """How many values come before the last fall that is larger than noise makes.

    >>> last_step(np.array([3.0, 2.0, 1.9, 1.1, 1.09, 1.08, 1.07, 1.06, 1.05, 1.04, 1.03]))
    3
    >>> last_step(np.linspace(1.2, 1.0, 20)) is None
    True
    """
    falls = values[:-1] / values[1:] - 1
    for heads in range(len(falls) - calibration.STEP_AFTER, 0, -1):
        usual = falls[heads : heads + calibration.STEP_AFTER].max()
        if falls[heads - 1] > max(calibration.STEP_LEAST, calibration.STEP_OVER_NOISE * usual):
            return heads
    return None
