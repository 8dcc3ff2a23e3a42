"""`fit`: initialize, compare, descend, replay, certify.

The run follows the theorem: a start with its P1-P3, a comparator fixed before the first step, descent that
records what the theorem needs at every step, leave-one-out runs, the certificate. Cost: one evaluation a step,
plus one for each replayed run. What can fail: weights that are not finite (NUMERICAL_FAILURE), a step that
does not descend, a comparator that is not quasi-convex along the run, or a bound that says nothing (NOT_ESTABLISHED).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnlearn._errors import NotEstablished, raise_if_interrupted
from attnlearn._maps import INPUTS, SampleInputs
from attnlearn._precision import precision
from attnlearn._result import Outcome, Phase, Solution
from attnlearn._types import ArrayLike
from attnlearn._version import __version__
from attnlearn.data._base import require_count
from attnlearn.engine import Checkpoint, Engine, PhaseFailed, Progress, Tools, array_hash, run_phases
from attnlearn.training._any_steps import bounds_along_any, strides
from attnlearn.training._calibration import CURVE_POINTS
from attnlearn.training._certify import (
    a_priori_checks,
    assemble,
    bounds_along,
    generalization_checks,
    run_checks,
    verify_run,
)
from attnlearn.training._evidence import RunEvidence
from attnlearn.training._held_out import measured_checks
from attnlearn.training._model import Model, Weights
from attnlearn.training._problem import Problem, TrainConfig, make_problem
from attnlearn.training._trained import TrainedClassifier


@dataclass(frozen=True)
class TrainState:
    """What the phases hand on; arrays and numbers only."""

    start: Any = None
    head: float = 0.0
    value: float = 0.0
    margin: float = 0.0
    step: float = 0.0
    comparator: Any = None
    loss_star: float = 0.0
    distance: float = 0.0
    weights: Any = None
    trace: Any = None
    distances: Any = None
    distance_end: float = 0.0
    margins: Any = None


def fit(
    x: ArrayLike,
    y: ArrayLike,
    *,
    num_heads: int,
    init: str = "first-step",
    optimizer: str = "gd",
    step: float | str = "auto",
    max_steps: int = 1000,
    seed: int = 0,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    model: Model | None = None,
    config: TrainConfig | None = None,
    engine: Engine | str | int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | bool | str | None = None,
    raise_on_failure: bool = True,
) -> Solution:
    """Train a multi-head attention classifier and say what is guaranteed.

    `x` (n, tokens, dim) are sequences, `y` their labels ±1. `step` is a number, "auto" (from the tangent
    kernel, halved until every step descends) or "theory" (the training theorem's limit). `test` is a pair of
    held-out sequences and labels, from which claim M about new examples is made. `solution.layer` is a
    `TrainedClassifier`; `solution.certified` means the run-verified tier, with a bound that says something;
    `solution.stats["tiers"]` has the figures of all tiers, each bound beside its measurement.

    >>> from attnlearn.data import TokenizedMixture
    >>> x, y = TokenizedMixture(tokens=4, dim=6).sample(40, seed=0)
    >>> solution = fit(x, y, num_heads=4, max_steps=50, config=TrainConfig(replays=0))
    >>> solution.certified, solution.layer
    (True, TrainedClassifier(num_heads=4, tokens=4, dim=6, float64))
    """
    problem = make_problem(
        x,
        y,
        num_heads=num_heads,
        test=test,
        init=init,
        optimizer=optimizer,
        step=step,
        max_steps=max_steps,
        model=model,
        config=config,
    )
    seed = require_count(seed, "seed", least=0)
    tools = Tools(Engine.parse(engine), Progress.make(progress), seed)
    saved = Checkpoint(checkpoint, _identity(problem, seed), resume) if checkpoint is not None else None
    with saved or nullcontext():
        solution = _solve(problem, tools, saved)
    raise_if_interrupted(solution)
    if raise_on_failure and solution.outcome is not Outcome.TRAINED:
        raise NotEstablished(solution)
    return solution


def _identity(problem: Problem, seed: int) -> dict[str, Any]:
    test = problem.test or (None, None)
    return {
        "task": "train",
        "data": array_hash(problem.x, problem.y, *test),
        "num_heads": problem.num_heads,
        "init": problem.init,
        "optimizer": problem.optimizer,
        "step": str(problem.step),
        "max_steps": int(problem.max_steps),
        "model": repr(problem.model),
        "config": repr(problem.config),
        "seed": seed,
        "version": __version__,
    }


def _solve(problem: Problem, tools: Tools, saved: Checkpoint | None) -> Solution:
    from attnlearn.training._phases import PHASES

    try:
        with precision(problem.dtype):
            run = run_phases(PHASES, problem, TrainState(), tools, saved)
    except PhaseFailed as failure:
        records = failure.run.records if failure.run is not None else []
        phases = tuple(Phase(*record) for record in records)
        return Solution.failed(Outcome.NUMERICAL_FAILURE, phases, phase=failure.name, field=failure.field)
    phases = tuple(Phase(*record) for record in run.records)
    if run.interrupted:
        return Solution.failed(Outcome.INTERRUPTED, phases)
    if run.stopped is not None:
        return Solution.failed(Outcome[run.stopped.outcome_name], phases, **run.stopped.evidence)
    return _conclude(problem, run.state, phases)


def _evidence(state: TrainState) -> RunEvidence:
    loss, gradient_sq, inner, norm = np.asarray(state.trace, np.float64)[:4]
    comparator_norm = float(
        np.sqrt((np.asarray(state.comparator[0], np.float64) ** 2).sum(axis=(1, 2)).max())
    )
    return RunEvidence(
        loss,
        gradient_sq,
        inner,
        norm,
        state.step,
        state.loss_star,
        state.distance,
        state.distance_end,
        comparator_norm,
    )


def _conclude(problem: Problem, state: TrainState, phases: tuple[Phase, ...]) -> Solution:
    u, w = state.weights
    classifier = TrainedClassifier(u, w, problem.model, problem.x.shape[1])
    run = _evidence(state)
    replay = next(phase.evidence for phase in phases if phase.name == "replay")
    claim, checks_r, verified = run_checks(problem, run)
    claims, checks_m, measured = measured_checks(problem, classifier, float(run.loss[-1]))
    gap = measured.get("gap", replay.get("leave_one_out_gap"))
    checks_a, a_priori = a_priori_checks(problem, run, state.margin, state.head, state.value, gap)
    checks_g, general = generalization_checks(problem, float(run.norm[-1]), state.distances, replay, gap)
    stats = {
        "new_examples": measured.pop("headline"),
        "tiers": {"a-priori": a_priori, "run-verified": verified, "measured": measured},
        "generalization": general,
        "train_loss": float(run.loss[-1]),
        "train_error": float(np.mean(state.margins <= 0)),
        "steps": len(run.loss) - 1,
        "curves": _curves(problem, run, state),
        "sample_inputs": SampleInputs(problem.x[:INPUTS]),
    }
    trained = claim.established or problem.optimizer == "adam"
    outcome = Outcome.TRAINED if trained else Outcome.NOT_ESTABLISHED
    return Solution(
        classifier, outcome, assemble([*claims, claim], checks_m, checks_r, checks_a, checks_g), phases, stats
    )


def _curves(problem: Problem, run: RunEvidence, state: TrainState) -> dict[str, list[float]]:
    num = len(run.loss) - 1
    kept = np.unique(np.linspace(0, num, min(num + 1, CURVE_POINTS)).astype(int))
    trace = np.asarray(state.trace, np.float64)
    curves = {"step": kept, "loss": run.loss[kept], "margin": trace[4][kept], "accuracy": trace[5][kept]}
    if problem.optimizer == "gd":
        bound = bounds_along(run, verify_run(run, float(np.finfo(problem.dtype).eps)))
        mean = np.cumsum(run.loss[1:]) / np.arange(1, num + 1)
        curves["bound"] = np.concatenate([[np.nan], bound])[kept]
        curves["mean_loss"] = np.concatenate([[np.nan], mean])[kept]
    elif problem.optimizer != "adam":
        eta = strides(problem.optimizer, run.step, run.loss[:-1], run.gradient_sq[:-1])
        bound, mean = bounds_along_any(run, eta)
        curves["bound"] = np.concatenate([[np.nan], bound])[kept]
        curves["mean_loss"] = np.concatenate([[np.nan], mean])[kept]
    return {name: np.asarray(values).tolist() for name, values in curves.items()}


def with_weights(state: TrainState, weights: Weights) -> TrainState:
    """The state with trained weights in the form the pipeline stores."""
    return replace(state, weights=[np.asarray(weights.u), np.asarray(weights.w)])
