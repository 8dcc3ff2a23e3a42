"""What the phases of the spectral route share: the problem, the state they build up, and nothing else."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attnlearn.data import Examples
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.solve._split import Split


@dataclass(frozen=True)
class Problem:
    """Examples, how they are split, and what the caller already knows; the certify side is never read here.

    >>> from attnlearn.data import as_examples
    >>> Problem(as_examples(np.ones((40, 3, 2)), np.ones((40, 3, 2))), Split.make(40)).causal is None
    True
    """

    examples: Examples
    split: Split
    causal: bool | None = None
    num_heads: int | None = None
    target: float | None = None


@dataclass(frozen=True)
class State:
    """What each phase leaves for the next ones; fields are None until their phase has run.

    prepare: the sequences that the phases before refine look at, if not all (`_calm`); token support x = mean + basis z (z white, `inverse` its pseudoinverse), the position means and
    correlations of z, its excess kurtosis and skewness, the linear fit of the outputs, the output whitening.
    moment: singular values, query_basis and value_basis (in white coordinates), floor, and how many examples it read.
    count: num_heads, the heads' coordinates on the span, whether two starts agreed on them, and the share of the select side
    that they leave unexplained. unmix: the layer in the caller's coordinates, and the inferred rank. stopped: the outcome
    with which a phase ended and left the problem to the fallbacks, and the examples that it asked for. searched: how random
    starts ended, if they were tried (`_search`).

    >>> State().num_heads is None
    True
    """

    fit: Int[np.ndarray, "f"] | None = None
    select: Int[np.ndarray, "s"] | None = None
    causal: bool | None = None
    mean: Float[np.ndarray, "d"] | None = None
    basis: Float[np.ndarray, "d r"] | None = None
    inverse: Float[np.ndarray, "r d"] | None = None
    position_mean: Float[np.ndarray, "k r"] | None = None
    position_correlation: Float[np.ndarray, "k k"] | None = None
    kurtosis: Float[np.ndarray, "r"] | None = None
    skewness: Float[np.ndarray, "r"] | None = None
    linear: Float[np.ndarray, "f o"] | None = None
    residual_covariance: Float[np.ndarray, "o o"] | None = None
    output_scale: float | None = None
    singular_values: Float[np.ndarray, "l"] | None = None
    query_basis: Float[np.ndarray, "l r1 r"] | None = None
    value_basis: Float[np.ndarray, "l r o"] | None = None
    floor: float | None = None
    moment_examples: int | None = None
    num_heads: int | None = None
    coordinates: Float[np.ndarray, "m l"] | None = None
    agreed: bool | None = None
    unexplained: float | None = None
    theta: Float[np.ndarray, "m d d"] | None = None
    w: Float[np.ndarray, "m d o"] | None = None
    query_bias: Float[np.ndarray, "m d"] | None = None
    output_bias: Float[np.ndarray, "o"] | None = None
    rank: int | None = None
    stopped: str | None = None
    examples_needed: int | None = None
    searched: str | None = None


def looked_at(problem: Problem, state: State) -> Problem:
    """The problem as the phases before refine see it: with calm sequences alone, where prepare found others too restless."""
    if state.fit is None:
        return problem
    split = dataclasses.replace(problem.split, fit=state.fit, select=state.select)
    return dataclasses.replace(problem, split=split)


def dependent(problem: Problem, state: State) -> bool:
    """Whether tokens depend on their positions or on each other."""
    assert state.position_correlation is not None
    assert state.position_mean is not None
    correlated = np.any(state.position_correlation != np.eye(problem.examples.tokens))
    return bool(correlated or np.any(state.position_mean != 0))


def unmodelled(problem: Problem, state: State) -> bool:
    """Whether tokens are such as the moment does not model: dependent, skewed, or from a list, whose fourth moments are its own."""
    return dependent(problem, state) or skewed(state) or repeated(problem, state)


def skewed(state: State) -> bool:
    """Whether some coordinate leans so far to one side that the moment sees it."""
    return state.skewness is not None and bool(np.abs(state.skewness).max() > calibration.SKEWED)


def repeated(problem: Problem, state: State) -> bool:
    """Whether most tokens occur more than once, as the words of a vocabulary do; ±1 tokens may, and are modelled."""
    if state.kurtosis is not None and np.all(state.kurtosis < calibration.KURTOSIS_OF_SIGNS):
        return False
    looked = problem.split.fit[: calibration.REPEATS_LOOKED // problem.examples.tokens + 1]
    x, _, mask = problem.examples.take(looked)
    tokens = x.reshape(-1, x.shape[-1]) if mask is None else x[mask]
    return 2 * len(np.unique(tokens, axis=0)) < len(tokens)
