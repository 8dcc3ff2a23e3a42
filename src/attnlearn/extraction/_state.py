"""What the phases of the extraction share: the problem, the state they build up, and the way to ask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._errors import OracleError, require
from attnlearn._types import LATER, Later, Mask, Outputs, Tokens
from attnlearn.engine import Stop
from attnlearn.extraction import _calibration as calibration
from attnlearn.oracle import BudgetSpent, Oracle


@dataclass(frozen=True)
class ExtractConfig:
    """What a caller may change: how the answer is certified and how the oracle may be asked.

    `certify_sequences` fresh sequences (None: 277, which speak of 95 % of the inputs, or as many as the parameter claim
    of a large layer takes beside the fitted ones) of two to `certify_tokens` Gaussian tokens judge the answer. Their
    standard deviations lie between a third and twice `token_scale` (None: the scale at which the heads are neither uniform
    nor saturated).

    >>> ExtractConfig(certify_sequences=500).certify_tokens
    16
    """

    certify_sequences: int | None = None
    certify_tokens: int = max(calibration.CERTIFY_LENGTHS)
    token_scale: float | None = None

    def __post_init__(self) -> None:
        number = self.certify_sequences
        require(number is None or number >= 1, "certify_sequences", "must be >= 1", number)
        least = calibration.CERTIFY_TOKENS
        require(self.certify_tokens >= least, "certify_tokens", f"must be >= {least}", self.certify_tokens)


@dataclass(frozen=True)
class Problem:
    """The oracle, the token dimension and what the caller wants."""

    oracle: Oracle
    dim: int
    num_heads: int | None = None
    config: ExtractConfig = ExtractConfig()
    target: float | None = None
    """A function error that is enough."""


@dataclass(frozen=True)
class State:
    """What each phase leaves for the next ones; fields are None until their phase has run.

    measure: causal, noise, rounding, total (S), bias (b). probe: scale, onset_span. separate: the slice at one
    displacement delta. match: w, query_bias. complete: longest (sequence to ask), theta, ranks. polish: all of
    these again, with the ranks that they were fitted at, residual.
    asked_x, asked_y: the queries of the last fit and their answers, one pair of arrays per length, single tokens first.
    ask, which no checkpoint keeps: held_x, held_y, held_mask, and larger_x, larger_y beyond their range,
    seen by the certificate alone.

    >>> State().noise is None
    True
    """

    causal: bool = False
    noise: Later[float] = LATER
    rounding: str = "float64"
    repeat_noise: float = 0.0
    total: Later[Float[np.ndarray, "d o"]] = LATER
    bias: Later[Float[np.ndarray, "o"]] = LATER
    scale: Later[float] = LATER
    onset_span: float = 1.0
    longest: int = calibration.CERTIFY_TOKENS
    delta: Later[Float[np.ndarray, "d"]] = LATER
    basis: Later[Float[np.ndarray, "d q"]] = LATER
    points: Later[Float[np.ndarray, "n q"]] = LATER
    slopes: Later[Float[np.ndarray, "m p"]] = LATER
    values: Later[Float[np.ndarray, "m o"]] = LATER
    constant_head: bool = False
    amplification: float = 1.0
    dependent: bool = False
    w: Later[Float[np.ndarray, "m d o"]] = LATER
    query_bias: Later[Float[np.ndarray, "m d"]] = LATER
    theta: Later[Float[np.ndarray, "m d d"]] = LATER
    ranks: Later[list[int]] = LATER
    residual: Later[float] = LATER
    asked_x: Later[list[Tokens]] = LATER
    asked_y: Later[list[Outputs]] = LATER
    held_x: Later[Tokens] = LATER
    held_y: Later[Outputs] = LATER
    held_mask: Later[Mask] = LATER
    larger_x: Later[Tokens] = LATER
    larger_y: Later[Outputs] = LATER


class Inquiry:
    """Asks the oracle on behalf of a phase and keeps what was asked for the fit.

    Tokens are first moved to the nearest ones that reach the oracle unrounded; `ask` returns those and the
    answers, in float64. A dead oracle or an empty budget ends the run with what is known so far.
    """

    def __init__(self, problem: Problem, state: State) -> None:
        self._problem = problem
        self.state = state
        self._kept: list[tuple[Tokens, Outputs]] = []

    def ask(self, x: Tokens, keep: bool = True, fresh: bool = False) -> tuple[Tokens, Outputs]:
        """The tokens as sent and their answers; `fresh` ones are not looked up in the cache."""
        oracle = self._problem.oracle
        try:
            tokens = oracle.accepted(np.ascontiguousarray(x, np.float64))
            answers = (oracle.fresh(tokens) if fresh else oracle(tokens)).astype(np.float64)
        except BudgetSpent as error:
            raise Stop("BUDGET_SPENT", self._evidence(error), self.kept()) from error
        except OracleError as error:
            raise Stop("ORACLE_FAILED", self._evidence(error), self.kept()) from error
        if keep:
            self.keep(tokens, answers)
        return tokens, answers

    def keep(self, tokens: Tokens, answers: Outputs) -> None:
        """Fit these queries too."""
        self._kept.append((tokens, answers))

    def kept(self, **changes: Any) -> State:
        """The state with the queries kept so far, and `changes`."""
        pairs = [*zip(self.state.asked_x or [], self.state.asked_y or []), *self._kept]
        by_length: dict[int, list[tuple[Tokens, Outputs]]] = {}
        for x, y in pairs:
            by_length.setdefault(x.shape[1], []).append((x, y))
        xs, ys = [], []
        for length in sorted(by_length):
            x, y = (np.concatenate(parts) for parts in zip(*by_length[length]))
            xs.append(x)
            ys.append(y)
        return replace(self.state, asked_x=xs, asked_y=ys, **changes)

    def _evidence(self, error: Exception) -> dict[str, Any]:
        return {"error": str(error), **counts(self._problem.oracle)}


def counts(oracle: Oracle) -> dict[str, int]:
    """Sequences, tokens and scalars asked so far, as evidence."""
    found = oracle.counts
    return {"sequences": found.sequences, "tokens": found.tokens, "scalars": found.scalars}


def answer_dtype(state: State) -> np.dtype:
    """float64 if the answers are finer than float32 can hold, else float32: digits beyond it were never seen."""
    if state.noise is None or not state.asked_y:
        return np.dtype(np.float64)
    size = max(float(np.abs(y).max(initial=0.0)) for y in state.asked_y)
    return np.dtype(np.float64 if state.noise <= calibration.FINER_THAN_FLOAT32 * size else np.float32)
