"""`extract`: a layer from answers to sequences of our choice. The phases read like the argument:

measure    single tokens give S = sum_i W_i and b, and the noise
probe      two tokens make the layer a sum of sigmoids; the scale at which these are neither flat nor saturated
separate   Jacobians at several base points are jointly diagonalised: the heads at one displacement
match      d further displacements, solved by continuation: all W_i and c_i
complete   exact logits between fixed tokens: all Theta_i, from few references when the rank is low
polish     Gauss-Newton on the well-conditioned part of the answers
ask        fresh random sequences, on which the frozen answer is then certified
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from attnlearn._errors import OracleError, require
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome, Solution
from attnlearn.engine import (
    Checkpoint,
    CheckpointError,
    Engine,
    Learner,
    Options,
    Progress,
    Run,
    Stop,
    Tools,
    handed_over,
    learn,
)
from attnlearn.extraction._ask import ask, certified_range
from attnlearn.extraction._complete import complete
from attnlearn.extraction._conclude import conclude
from attnlearn.extraction._match import match
from attnlearn.extraction._measure import measure
from attnlearn.extraction._polish import layer_of, polish
from attnlearn.extraction._probe import probe
from attnlearn.extraction._separate import separate
from attnlearn.extraction._state import ExtractConfig, Problem, State, answer_dtype, counts
from attnlearn.oracle import BudgetSpent, Oracle
from attnlearn.oracle._cache import OracleChanged


def extract(
    oracle: Any,
    dim: int | None = None,
    *,
    num_heads: int | None = None,
    budget: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    config: ExtractConfig | None = None,
    target: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    engine: Engine | str | int | None = None,
    device: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress | bool | str | None = None,
    raise_on_failure: bool = True,
) -> Solution:
    """Recover every head of the attention layer behind `oracle` from chosen queries, with a certificate.

    `oracle` maps tokens (n, k, dim) to outputs (n, k, d_out): a callable, a layer, a torch module or a text that
    `attnlearn.oracle.parse` understands. `dim` may be left out for an oracle that says it: a layer, a server, a program. At most
    `budget` sequences are asked; with `cache` an interrupted run does not ask twice. The number of heads and their ranks are found;
    `num_heads` only bounds the count where noise blurs it. `stats` counts sequences, tokens and scalars. With `target` claim
    C1 at that function error is enough. After `time_limit` seconds the run ends with the phase at hand. A run that achieved less
    than was asked for raises `NotEstablished`, which carries the solution; with `raise_on_failure=False` it is returned.

    >>> from attnlearn import distance
    >>> truth = AttentionLayer.random(num_heads=2, dim=4, seed=1)
    >>> solution = extract(truth, progress=False)
    >>> solution.certified, distance(solution.layer, truth).max < 1e-9
    (True, True)
    """
    require(num_heads is None or num_heads >= 1, "num_heads", "must be at least 1", num_heads)
    config = ExtractConfig() if config is None else config
    require(isinstance(config, ExtractConfig), "config", "must be an ExtractConfig", config)
    options = Options(
        target=target, time_limit=time_limit, seed=seed, engine=engine, device=device, checkpoint=checkpoint,
        resume=resume, progress=progress, raise_on_failure=raise_on_failure,
    )  # fmt: skip
    tools = options.tools()
    wrapped = Oracle.wrap(oracle, budget=budget, cache=cache)
    try:
        problem = Problem(wrapped, token_dimension(wrapped, dim), num_heads, config, target)
    except OracleError as error:
        return handed_over(
            Solution(None, Outcome.ORACLE_FAILED, stats={"error": str(error), **counts(wrapped)}), options
        )
    return learn(Extraction(problem), options, tools)


LEARNED = (
    ("measure", measure),
    ("probe", probe),
    ("separate", separate),
    ("match", match),
    ("complete", complete),
    ("polish", polish),
)
PHASES = (*LEARNED, ("ask", ask))
"""A checkpoint keeps what was `LEARNED`; `ask` comes after it, anew in every run."""


class Extraction(Learner):
    """`extract` as the engine runs it."""

    name = "extract"

    def __init__(self, problem: Problem) -> None:
        self.problem, self.state, self.phases = problem, State(), PHASES

    def identity(self) -> dict[str, Any]:
        """The oracle and what is known of the layer."""
        return {
            "oracle": self.problem.oracle.identity,
            "dim": self.problem.dim,
            "num_heads": self.problem.num_heads,
            "configuration": repr(self.problem.config),
        }

    def opened(self, saved: Checkpoint) -> None:
        """Refuse a checkpoint that was written for an oracle with other answers."""
        oracle = self.problem.oracle
        try:
            oracle.recognise(saved.folder, self.problem.dim)
        except OracleChanged as error:
            raise CheckpointError(f"the checkpoint is of another oracle: {error}") from error
        except (OracleError, BudgetSpent) as error:
            ended = "BUDGET_SPENT" if isinstance(error, BudgetSpent) else "ORACLE_FAILED"
            raise Stop(ended, {"error": str(error)}) from error

    def so_far(self, state: State) -> tuple[AttentionLayer | None, dict[str, Any]]:
        """The layer with all Theta_i, once they are known, and what was asked."""
        stats: dict[str, Any] = {
            **counts(self.problem.oracle),
            "cached_sequences": self.problem.oracle.counts.cached,
            "noise": state.noise,
            "rounding": state.rounding,
            "token_scale": state.scale,
            "certify_distribution": None if state.held_mask is None else certified_range(state),
        }
        return (None if state.theta is None else layer_of(state).astype(answer_dtype(state))), stats

    def conclude(self, run: Run, layer: AttentionLayer | None, tools: Tools) -> Solution:
        """The certificate on what `ask` brought."""
        assert layer is not None, "complete has run"
        certificate, ended, figures = conclude(self.problem, run.state, layer, tools.progress.update)
        return Solution(layer, ended, certificate, stats=figures)


def token_dimension(oracle: Oracle, dim: int | None) -> int:
    """The dimension that the caller gave, or the one that the oracle says."""
    if dim is None:
        dim = oracle.dim
        rule = "must be given for an oracle that does not say its token dimension"
        require(dim is not None, "dim", rule, dim)
    whole = isinstance(dim, (int, np.integer)) and dim >= 1
    require(whole, "dim", "must be an integer >= 1", dim)
    return int(dim)  # type: ignore[arg-type]
