"""Ask: fresh random sequences of many lengths and sizes, on which the frozen answer is then certified.

An oracle may be an attention layer on short sequences or small tokens only: one with a window, a limit on keys or length, clipped
tokens or capped scores is. So the sequences have 2 to 16 Gaussian tokens, and standard deviations from a third to twice
the scale at which the heads are neither uniform nor saturated. The claims name this range and speak of no other. A few sequences
of larger tokens are asked as well: C2 and C3 are withheld from an oracle that is plainly something else there. One sequence of each
length is asked alone, the others together.
These answers are never taken from a checkpoint or a cache: they are the only evidence that the oracle still is what was learned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnlearn.engine import Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._equations import certify_sequences
from attnlearn.extraction._lengths import accepted_lengths
from attnlearn.extraction._polish import padded
from attnlearn.extraction._state import Inquiry, Problem, State, counts


def ask(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The certify queries and their answers, as one padded batch in random order."""
    inquiry, rng = Inquiry(problem, state), tools.rng("certify")
    lengths = accepted_lengths(problem, state, inquiry, fresh=True)
    number = problem.config.certify_sequences or certify_sequences(state, lengths)
    xs, ys = [], []
    chosen = rng.choice(lengths, number)
    scales = state.scale * np.exp(rng.uniform(*np.log(calibration.CERTIFY_SCALES), size=number))
    for length in lengths:
        own = scales[chosen == length]
        if len(own):
            tokens = rng.standard_normal((len(own), length, problem.dim)) * own[:, None, None]
            for together in (
                tokens[:1],
                tokens[1:],
            ):  # an oracle may answer otherwise when it is asked for one sequence
                if len(together):
                    x, y = inquiry.ask(together, keep=False, fresh=True)
                    xs.append(x)
                    ys.append(y)
    order = rng.permutation(number)
    x, y, mask = (array[order] for array in padded(xs, ys))
    found = {"certify_sequences": number, "longest": int(max(lengths)), **counts(problem.oracle)}
    shape = (calibration.LARGER_SEQUENCES, max(lengths), problem.dim)
    beyond = inquiry.ask(
        calibration.LARGER * state.scale * rng.standard_normal(shape), keep=False, fresh=True
    )
    held = {"held_x": x, "held_y": y, "held_mask": mask, "larger_x": beyond[0], "larger_y": beyond[1]}
    return replace(state, **held), found


ask.never_saved = True  # type: ignore[attr-defined]


def certified_range(state: State) -> str:
    """The inputs of which the claims speak, in words."""
    lengths = state.held_mask.sum(axis=1)
    low, high = (state.scale * factor for factor in calibration.CERTIFY_SCALES)
    return f"{lengths.min()} to {lengths.max()} Gaussian tokens of standard deviation {low:.3g} to {high:.3g}"
