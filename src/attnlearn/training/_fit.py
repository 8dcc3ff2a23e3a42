"""`fit`: initialize, compare, descend, replay, certify.

The run follows the theorem: a start with its P1-P3, a comparator fixed before the first step, descent that
records what the theorem needs at every step, leave-one-out runs, the certificate. Cost: one evaluation a step,
plus one for each replayed run. What can fail: weights that are not finite (NUMERICAL_FAILURE), a step that
does not descend, a comparator that is not quasi-convex along the run, or a bound that says nothing (NOT_ESTABLISHED).
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnlearn._certificate import Claim
from attnlearn._errors import require
from attnlearn._maps import INPUTS, SampleInputs
from attnlearn._precision import precision
from attnlearn._result import Outcome, Solution
from attnlearn._types import ArrayLike
from attnlearn.engine import Engine, Learner, Options, Progress, Run, Tools, array_hash, learn
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
    test: tuple[ArrayLike, ArrayLike] | None = None,
    model: Model | None = None,
    config: TrainConfig | None = None,
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
    """Train a multi-head attention classifier and say what is guaranteed.

    `x` (n, tokens, dim) are sequences, `y` their labels ±1. `step` is a number, "auto" (from the tangent
    kernel, halved until every step descends) or "theory" (the training theorem's limit). `test` is a pair of
    held-out sequences and labels, from which claim M about new examples is made. `solution.layer` is a
    `TrainedClassifier`; `solution.certified` means the run-verified tier, with a bound that says something;
    `solution.stats["tiers"]` has the figures of all tiers, each bound beside its measurement. With `target`, a training loss that
    is enough, claim L says whether the trained model has it. A run that is neither certified nor on target raises
    `NotEstablished`, which carries the solution; runs of Adam are never certified. After `time_limit`
    seconds the run ends with the weights so far and BUDGET_SPENT.

    >>> from attnlearn.data import TokenizedMixture
    >>> x, y = TokenizedMixture(tokens=4, dim=6).sample(40, seed=0)
    >>> solution = fit(x, y, num_heads=4, max_steps=50, config=TrainConfig(replays=0))
    >>> solution.certified, solution.layer
    (True, TrainedClassifier(num_heads=4, tokens=4, dim=6, float64))
    """
    require(device in (None, "cpu"), "device", 'must be None or "cpu": JAX has its own settings', device)
    options = Options(
        target=target, time_limit=time_limit, seed=seed, engine=engine, device=device, checkpoint=checkpoint,
        resume=resume, progress=progress, raise_on_failure=raise_on_failure,
    )  # fmt: skip
    tools = options.tools()
    problem = make_problem(
        x, y, num_heads=num_heads, test=test, init=init, optimizer=optimizer, step=step, max_steps=max_steps,
        model=model, config=config,
    )  # fmt: skip
    return learn(Training(problem, target), options, tools)


class Training(Learner):
    """`train.fit` as the engine runs it."""

    name = "train"

    def __init__(self, problem: Problem, target: float | None) -> None:
        from attnlearn.training._phases import PHASES

        self.problem, self.state, self.phases, self.target = problem, TrainState(), PHASES, target

    def identity(self) -> dict[str, Any]:
        """The examples and the settings of the run."""
        problem = self.problem
        return {
            "data": array_hash(problem.x, problem.y, *(problem.test or (None, None))),
            "num_heads": problem.num_heads,
            "init": problem.init,
            "optimizer": problem.optimizer,
            "step": str(problem.step),
            "max_steps": int(problem.max_steps),
            "model": repr(problem.model),
            "configuration": repr(problem.config),
        }

    def context(self) -> AbstractContextManager[Any]:
        """The precision of the examples."""
        return precision(self.problem.dtype)

    def so_far(self, state: TrainState) -> tuple[TrainedClassifier | None, dict[str, Any]]:
        """The model with the last weights."""
        x = self.problem.x
        stats = {
            "examples": len(x),
            "sequence_length": x.shape[1],
            "sample_inputs": SampleInputs(x[:INPUTS]),
        }
        if state.weights is None:
            return None, stats
        u, w = state.weights
        return TrainedClassifier(u, w, self.problem.model, x.shape[1]), stats

    def conclude(self, run: Run, layer: TrainedClassifier | None, tools: Tools) -> Solution:
        """The tiers of the guarantee, each from the evidence of the run."""
        assert layer is not None, "descend has run"
        replay = next(record.evidence for record in run.records if record.name == "replay")
        return _conclude(self.problem, run.state, layer, replay, self.target)


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


def _conclude(
    problem: Problem,
    state: TrainState,
    classifier: TrainedClassifier,
    replay: dict[str, Any],
    target: float | None,
) -> Solution:
    run = _evidence(state)
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
    }
    claims = [*claims, claim, *_loss_claim(float(run.loss[-1]), target)]
    certificate = assemble(claims, checks_m, checks_r, checks_a, checks_g)
    return Solution(classifier, _outcome(claims), certificate, stats=stats)


def _loss_claim(loss: float, target: float | None) -> list[Claim]:
    """L, where a target was given: the training loss of the model, which is a measurement and assumes nothing."""
    if target is None:
        return []
    text = f"the training loss is {loss:.4g}, the target {target:.4g}"
    return [Claim.stated("L", text, loss <= target, {"loss": loss, "target": target})]


def _outcome(claims: list[Claim]) -> Outcome:
    """TRAINED if every claim is established; ON_TARGET if that about the target is."""
    established = {claim.code: claim.established for claim in claims}
    if all(established.values()):
        return Outcome.TRAINED
    return Outcome.ON_TARGET if established.get("L") else Outcome.NOT_ESTABLISHED


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
