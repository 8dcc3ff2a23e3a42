"""Run a learner: the one scaffold of `recover`, `extract`, `compress` and `train.fit`.

A learner says which problem it has (`identity`), which phases it runs, what is known after any of them (`so_far`) and how a
finished run is judged (`conclude`). The rest is the same for all of them and stands here: the last keywords and their rules,
checkpoint and resuming, the time limit, a phase that fails, Ctrl-C, and the exception of a run that did not achieve what was asked.

Cost: none beside the phases. What can fail: `ValueError` for keywords that break a rule, `CheckpointError` for a checkpoint of
another problem, `NotEstablished` and `KeyboardInterrupt` as the caller asked for.
"""

from __future__ import annotations

import dataclasses
import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

from attnlearn._arrays import Device
from attnlearn._errors import NotEstablished, raise_if_interrupted, require
from attnlearn._result import Outcome, Phase, Solution
from attnlearn._version import __version__
from attnlearn.engine._checkpoint import Checkpoint
from attnlearn.engine._map import Engine
from attnlearn.engine._pieces import computed_on
from attnlearn.engine._pipeline import PhaseFailed, Phases, Run, Stop, Tools, run_phases
from attnlearn.engine._progress import Progress


@dataclass(frozen=True)
class Options:
    """The last keywords of every verb, with the defaults that all of them have.

    `target` is an error that is enough. After `time_limit` seconds the run ends with the best answer so far and BUDGET_SPENT;
    with a `checkpoint`, a folder, the next run goes on from there unless `resume` is False. `device` is where sums over chunks are computed:
    None or "cpu" with NumPy, "cuda" and the like with torch.
    `raise_on_failure` raises `NotEstablished` for a run that did not achieve what was asked for.

    >>> Options(time_limit=0)
    Traceback (most recent call last):
    ValueError: time_limit: must be positive (seconds), got 0
    """

    target: float | None = None
    time_limit: float | None = None
    seed: int = 0
    engine: Engine | str | int | None = None
    device: str | None = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = True
    progress: Progress | bool | str | None = None
    raise_on_failure: bool = True

    def __post_init__(self) -> None:
        limit, seed = self.time_limit, self.seed
        require(self.target is None or self.target > 0, "target", "must be positive", self.target)
        require(limit is None or limit > 0, "time_limit", "must be positive (seconds)", limit)
        whole = isinstance(seed, Integral) and not isinstance(seed, bool) and seed >= 0
        require(whole, "seed", "must be an integer >= 0", seed)
        Device.parse(self.device)

    def without_folder(self) -> dict[str, Any]:
        """The keywords of one of several runs in a row, which cannot share a checkpoint."""
        kept = ("target", "time_limit", "seed", "engine", "device", "progress")
        return {name: getattr(self, name) for name in kept}

    def tools(self) -> Tools:
        """What the phases may use; the time limit counts from here."""
        deadline = None if self.time_limit is None else time.monotonic() + self.time_limit
        engine, progress = Engine.parse(self.engine), Progress.make(self.progress)
        return Tools(engine, progress, int(self.seed), deadline=deadline)


class Learner:
    """What one verb brings: `phases` that run on `problem` from `state`, and what these four methods say.

    >>> Learner().finished(None)
    False
    """

    name: ClassVar[str] = ""
    problem: Any
    state: Any
    phases: Phases

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree on beside version, seed and target: data and settings."""
        raise NotImplementedError

    def opened(self, saved: Checkpoint) -> None:
        """Look at a checkpoint before the first phase; `Stop` ends the run there."""

    def context(self) -> AbstractContextManager[Any]:
        """What holds around the phases and the conclusion."""
        return nullcontext()

    def so_far(self, state: Any) -> tuple[Any, dict[str, Any]]:
        """The best layer after any phase (None: there is none yet), and figures for the result."""
        raise NotImplementedError

    def finished(self, state: Any) -> bool:
        """Whether a run whose time is up has found what it was asked for and can be judged."""
        return False

    def conclude(self, run: Run, layer: Any, tools: Tools) -> Solution:
        """Judge a run that ended by itself: outcome, certificate and their figures."""
        raise NotImplementedError


def learn(learner: Learner, options: Options, tools: Tools) -> Solution:
    """Run the phases that the checkpoint has not seen, judge what they found, and hand it over."""
    saved = None
    if options.checkpoint is not None:
        saved = Checkpoint(options.checkpoint, _identity(learner, options), resume=options.resume)
    known = None if callable(learner.phases) else len(learner.phases) + 1
    shown, device = tools.progress.run(learner.name, known), Device.parse(options.device)
    with saved or nullcontext(), learner.context(), tools.engine.summing(), computed_on(device), shown:
        solution = _solution(learner, _run(learner, tools, saved), options, tools)
    return handed_over(solution, options)


def handed_over(solution: Solution, options: Options) -> Solution:
    """The solution, or the exception that carries it when it did not achieve what was asked for."""
    raise_if_interrupted(solution)
    if options.raise_on_failure and not solution.achieved:
        raise NotEstablished(solution)
    return solution


def _identity(learner: Learner, options: Options) -> dict[str, Any]:
    common = {
        "verb": learner.name,
        "version": __version__,
        "seed": int(options.seed),
        "target": options.target,
    }
    return common | learner.identity()


def _run(learner: Learner, tools: Tools, saved: Checkpoint | None) -> Run:
    try:
        if saved is not None:
            learner.opened(saved)
        return run_phases(learner.phases, learner.problem, learner.state, tools, saved)
    except Stop as stop:  # while the checkpoint was looked at
        return Run(learner.state, stopped=stop)
    except PhaseFailed as failure:
        run = Run(learner.state) if failure.run is None else failure.run
        run.stopped = Stop("NUMERICAL_FAILURE", {"error": str(failure)})
        return run


def _solution(learner: Learner, run: Run, options: Options, tools: Tools) -> Solution:
    phases = tuple(Phase(*record) for record in run.records)
    layer, stats = learner.so_far(run.state)
    stats = {"seed": tools.seed, "target": options.target} | stats
    ended, evidence = _ended_early(learner, run, options)
    if ended is not None:
        return Solution(layer, ended, phases=phases, stats=stats | evidence)
    began = time.perf_counter()
    with tools.progress.phase("certify"):
        found = learner.conclude(run, layer, tools)
    if found.certificate.claims:
        phases = (*phases, Phase("certify", time.perf_counter() - began, {"outcome": found.outcome.name}))
    return dataclasses.replace(found, phases=phases, stats=stats | found.stats)


def _ended_early(learner: Learner, run: Run, options: Options) -> tuple[Outcome | None, dict[str, Any]]:
    """How a run ended that has nothing to be judged, and the evidence; None for one that has."""
    if run.interrupted:
        return Outcome.INTERRUPTED, {}
    if run.stopped is not None:
        return Outcome[run.stopped.outcome_name], run.stopped.evidence
    if run.out_of_time and not learner.finished(run.state):
        return Outcome.BUDGET_SPENT, {"error": f"the time limit of {options.time_limit:g} s is up"}
    return None, {}
