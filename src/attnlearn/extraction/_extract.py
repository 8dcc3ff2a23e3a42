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
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._certificate import Certificate, Check, Status
from attnlearn._errors import OracleError, require
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome, Solution
from attnlearn._types import Tokens
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
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._ask import ask, certified_range
from attnlearn.extraction._complete import complete
from attnlearn.extraction._equations import determined
from attnlearn.extraction._match import match
from attnlearn.extraction._measure import measure
from attnlearn.extraction._polish import layer_of, padded, polish
from attnlearn.extraction._probe import probe
from attnlearn.extraction._separate import separate
from attnlearn.extraction._state import ExtractConfig, Problem, State, answer_dtype, counts
from attnlearn.oracle import BudgetSpent, Oracle
from attnlearn.oracle._cache import OracleChanged
from attnlearn.solve._batch import Batch, exactness_limit, example_scale, rounding_floor, unit_errors
from attnlearn.solve._calibration import SMALL_ERROR
from attnlearn.solve._diagnose import diagnose
from attnlearn.solve._heads import head_separation
from attnlearn.solve.certification import certify


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


def conclude(
    problem: Problem, state: State, layer: AttentionLayer, on_step: Callable[..., None] | None = None
) -> tuple[Certificate, Outcome, dict[str, Any]]:
    """Certify the frozen answer and say how the run ended."""
    dtype = layer.dtype
    held = Batch(state.held_x.astype(dtype), state.held_y.astype(dtype), state.held_mask)
    scale, asked = example_scale(_longest(state, dtype)), everything_asked(state, dtype)
    rank = None if state.ranks is None else max(1, *state.ranks)
    m, d, o = layer.w.shape
    assert asked.mask is not None, "queries of different lengths are padded"
    whole = determined(m, d, o, layer.causal, asked.mask.sum(axis=1).tolist())
    tangent = None if state.constant_head and whole else rank
    with np.errstate(divide="ignore"):  # where no head has scores their error is relative to nothing
        certificate = certify(
            layer, held, asked, scale=scale, rank=tangent, target=problem.target,
            where=f" of {certified_range(state)}", designed=True, on_step=on_step,
        )  # fmt: skip
    certificate = certificate.resting_on(judged_beyond(state, layer))
    certificate, exact = judged_by_answers(judged_by_fit(certificate, state, layer), state)
    errors, floor = unit_errors(layer, held, scale), rounding_floor(layer, held, scale)
    noise = state.noise * np.sqrt(held.y[0].size) / scale
    figures: dict[str, Any] = {
        "fit_residual": state.residual,
        "certify_error": float(errors.max()),
        "rounding_floor": floor,
        "noise_relative": float(noise),
        "rank": rank,
        "ranks": state.ranks,
        "num_heads": layer.num_heads,
    }
    if certificate.certified:
        return certificate, Outcome.RECOVERED, figures
    if problem.target is not None and certificate.claim("C1").established:
        return certificate, Outcome.ON_TARGET, figures
    typical = float(np.sqrt(np.mean(errors**2)))
    if exact and errors.max() <= exactness_limit(floor, dtype):
        apart = head_separation(layer) >= calibration.APART
        return certificate, Outcome.NOT_ESTABLISHED if apart else Outcome.HEADS_INDISTINGUISHABLE, figures
    if typical <= calibration.AS_GOOD_AS_NOISE * noise:
        return certificate, Outcome.BELOW_NOISE_FLOOR, figures
    if typical <= calibration.MISFIT:
        return certificate, Outcome.NOT_ESTABLISHED, figures
    figures["diagnosis"] = diagnose(held.x, held.y, held.mask, layer.causal).to_json()
    return certificate, Outcome.NOT_ATTENTION, figures


def everything_asked(state: State, dtype: np.dtype) -> Batch:
    """Fresh and fitted queries, the longest first: what determines the layer has nothing to do with who saw it.

    Short ones beside long ones are left out: they tell little and would cost as much.
    """
    long = [2 * x.shape[1] >= state.asked_x[-1].shape[1] for x in state.asked_x]
    x, y, mask = padded(
        *([a for a, told in zip(asked, long) if told][::-1] for asked in (state.asked_x, state.asked_y))
    )
    missing = state.held_x.shape[1] - x.shape[1]
    x, y = (np.pad(array, ((0, 0), (0, missing), (0, 0))) for array in (x, y))
    mask = np.pad(mask, ((0, 0), (0, missing)))
    pairs = ((state.held_x, x), (state.held_y, y), (state.held_mask, mask))
    x, y, mask = (np.concatenate(pair) for pair in pairs)
    return Batch(x.astype(dtype), y.astype(dtype), mask)


def judged_beyond(state: State, layer: AttentionLayer) -> Check:
    """C2 and C3 need an oracle that is no other function on larger tokens, beyond the range that the claims name."""
    beyond = Batch(state.larger_x.astype(layer.dtype), state.larger_y.astype(layer.dtype))
    scale = example_scale(beyond)
    limit = exactness_limit(rounding_floor(layer, beyond, scale), layer.dtype)
    return Check.compare(
        "C2.beyond",
        float(unit_errors(layer, beyond, scale).max()),
        min(calibration.LARGER_ERROR * limit, SMALL_ERROR),
        unit="relative error",
        text=f"largest error on tokens of {calibration.LARGER:g} times the scale",
    )


def judged_by_fit(certificate: Certificate, state: State, layer: AttentionLayer) -> Certificate:
    """C2 and C3 need float32 answers to be fitted as closely as they were rounded: a head that is missing is left over.

    The largest of a few hundred errors shows it less than the sum over all that was asked.
    """
    if layer.dtype != np.float32:
        return certificate
    check = Check.compare(
        "C2.fit",
        state.residual / max(typical_rounding(layer, state.asked_x), np.finfo(np.float64).tiny),
        calibration.FIT_ROUNDING,
        unit="of rounding",
        text="typical residual of the fit",
    )
    return certificate.resting_on(check)


def typical_rounding(layer: AttentionLayer, asked: list[Tokens]) -> float:
    """Root mean square rounding error of one scalar of the layer's outputs in its own precision.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4).astype(np.float32)
    >>> 1e-9 < typical_rounding(layer, [np.ones((5, 3, 4))]) < 1e-6
    True
    """
    exact, sums, number = layer.astype(np.float64), 0.0, 0
    for x in asked:
        rounded = x.astype(layer.dtype)
        error = layer(rounded).astype(np.float64) - exact(rounded.astype(np.float64))
        sums, number = sums + float(np.sum(error**2)), number + error.size
    return float(np.sqrt(sums / max(number, 1)))


def judged_by_answers(certificate: Certificate, state: State) -> tuple[Certificate, bool]:
    """C2 and C3 need answers as exact as float32 or float64; rounded or noisy ones can hide a head in their error."""
    eps = float(np.finfo(np.float32 if state.rounding == "float32" else np.float64).eps)
    size = max(float(np.abs(y).max(initial=0.0)) for y in state.asked_y)
    check = Check.compare(
        "C2.answers",
        max(state.noise, state.repeat_noise) / max(eps * size, np.finfo(np.float64).tiny),
        calibration.ANSWER_STEPS,
        unit="rounding steps",
        text="noise of the answers",
    )
    return certificate.resting_on(check), check.status is Status.HOLDS


def _longest(state: State, dtype: np.dtype) -> Batch:
    """The longest fitted queries: like the certify ones, so that their outputs set the scale of errors."""
    x, y = next(pair for pair in reversed(list(zip(state.asked_x, state.asked_y))) if len(pair[0]))
    return Batch(x.astype(dtype), y.astype(dtype))
