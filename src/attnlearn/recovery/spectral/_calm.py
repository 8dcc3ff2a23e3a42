"""Calm: where tokens have heavy tails, the sequences without extreme ones, on which the phases before refine look.

The moment multiplies three tokens and an output, so a few sequences with extreme coordinates are most of its noise: of tokens
that follow Student's t with six degrees of freedom the measured floor is 4 to 7 times the computed one, and the heads drown. A
sequence is calm if no coordinate of its white tokens is larger than that of half the sequences. The choice looks at each token
alone and never at outputs: calm tokens are as independent as all are, the layer is the same on them, and what is found there is
refined and certified on everything.

Cost: a pass over the tokens, where tails are heavy. What can fail: rare words carry directions of their own, which calm sequences
would lose; so lists of words, and tokens whose calm ones span less, are left as they are.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._rows import white_tokens
from attnlearn.recovery.spectral._state import Problem, State, repeated

_CHUNK = 1024


def restless(problem: Problem, state: State) -> bool:
    """Whether the tails of the tokens are so heavy that calm sequences show more than all do."""
    assert state.kurtosis is not None
    return float(state.kurtosis.mean()) > calibration.HEAVY_TAILS and not repeated(problem, state)


def calm_sides(problem: Problem, state: State) -> dict[str, Int[np.ndarray, "i"]]:
    """The calm sequences of the fit and of the select side."""
    sides = {"fit": problem.split.fit, "select": problem.split.select}
    largest = {name: largest_coordinates(problem, state, side) for name, side in sides.items()}
    bound = np.quantile(largest["fit"], calibration.CALM_SHARE)
    return {name: side[largest[name] <= bound] for name, side in sides.items()}


def largest_coordinates(
    problem: Problem, state: State, indices: Int[np.ndarray, "i"]
) -> Float[np.ndarray, "i"]:
    """The largest coordinate of a sequence's white tokens, in absolute value."""
    inverse = state.inverse.T.astype(np.float32)
    found = []
    for x, _, mask in problem.examples.chunks(_CHUNK, indices):
        z = np.abs(white_tokens(x, state.mean, inverse)).max(axis=2)
        found.append((z if mask is None else z * mask).max(axis=1))
    return np.concatenate(found)
