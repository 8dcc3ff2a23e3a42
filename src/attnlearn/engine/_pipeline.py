"""Phases run one after the other: timed, checked, saved, resumable.

A phase is a function `phase(problem, state, tools) -> (state, info)`. The state is a frozen dataclass of
arrays, numbers, strings, None, storable records and lists of those: all that later phases need. The info is evidence for the
report. The phases are a list, or a function from the state to the next of them. Progress shows every phase by its name. A phase that
`shows_itself` is left to do so. A phase that is `never_saved` runs anew in every run.

After each phase the pipeline makes every array of the state a C-contiguous NumPy array, checks that float arrays are finite, writes
the checkpoint, and reports. A resumed run gets the state from disk instead of from memory; both are the same arrays with the same
layout, so it ends in the same bytes.

Randomness must come from `tools.rng(label)`, which depends on the seed and the label only: a phase draws the
same numbers whether or not the phases before it ran in this process.

Cost: none beside the phases, but one write of the state each. What can fail: `PhaseFailed` for a state with
NaN or infinity. Ctrl-C returns what is there with `interrupted=True`; whoever asked for the run then hears of it by
`raise_if_interrupted`. A phase ends the run early by raising `Stop`. A run whose time is up ends after the phase that
noticed it, with `out_of_time=True`, and can be resumed.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import AttnlearnError, describe, require
from attnlearn._interrupts import noticed_interrupts
from attnlearn.engine._checkpoint import Checkpoint, CheckpointError
from attnlearn.engine._encode import fields_of, is_array, to_array
from attnlearn.engine._map import Engine
from attnlearn.engine._progress import Progress

PhaseFunction = Callable[[Any, Any, "Tools"], tuple[Any, dict[str, Any]]]
Phases = Sequence[tuple[str, PhaseFunction]] | Callable[[Any], tuple[str, PhaseFunction] | None]
"""The phases in order; or, from the state, the name and the function of the next one (None: that was all)."""
_INNER = "inner"


class Record(NamedTuple):
    """What one finished phase leaves for the report.

    >>> Record("fit", 0.5, {"loss": 0.1}).name
    'fit'
    """

    name: str
    seconds: float
    evidence: dict[str, Any]


@dataclass
class Run:
    """The state after the last finished phase, the records of all of them, and why it ended.

    >>> Run(state=None).interrupted
    False
    """

    state: Any
    records: list[Record] = field(default_factory=list)
    interrupted: bool = False
    stopped: Stop | None = None
    out_of_time: bool = False


class Stop(Exception):
    """Raised by a phase to end the run early with the outcome of that name.

    >>> Stop("TOO_FEW_EXAMPLES", {"needed": 4000}).outcome_name
    'TOO_FEW_EXAMPLES'
    """

    def __init__(
        self, outcome_name: str, evidence: Mapping[str, Any] | None = None, state: Any = None
    ) -> None:
        super().__init__(outcome_name)
        self.outcome_name = outcome_name
        self.evidence = dict(evidence or {})
        self.state = state


class PhaseFailed(AttnlearnError):
    """A phase left a NaN or an infinity in `field`; `.run` is what was finished before it.

    >>> PhaseFailed("unmix", "theta").field
    'theta'
    """

    def __init__(self, name: str, field: str, run: Run | None = None) -> None:
        super().__init__(f"phase {name} left a value that is not finite in {field}")
        self.name, self.field, self.run = name, field, run


@dataclass
class Tools:
    """What a phase may use beside the problem and the state.

    >>> tools = Tools(seed=3)
    >>> tools.engine.map(abs, [-1])
    [1]
    >>> float(tools.rng("starts").random()) == float(Tools(seed=3).rng("starts").random())
    True
    """

    engine: Engine = field(default_factory=Engine)
    progress: Progress = field(default_factory=Progress)
    seed: int = 0
    checkpoint: Checkpoint | None = None
    phase: str = ""
    deadline: float | None = None
    """When the run should end, as `time.monotonic()` counts."""

    @property
    def out_of_time(self) -> bool:
        """Whether the time that the run was given is up.

        >>> Tools().out_of_time, Tools(deadline=0.0).out_of_time
        (False, True)
        """
        return self.deadline is not None and time.monotonic() >= self.deadline

    def rng(self, label: str) -> np.random.Generator:
        """A generator of its own for each label, the same in every process.

        >>> Tools(seed=0).rng("a").random() != Tools(seed=0).rng("b").random()
        True
        """
        return np.random.default_rng([self.seed, zlib.crc32(label.encode())])

    def checkpoint_inner(self, name: str, state: Mapping[str, Any]) -> None:
        """Inside a long phase: save what `resume_inner(name)` will give back after a kill.

        >>> Tools().checkpoint_inner("descent", {"step": 10})
        """
        if self.checkpoint is not None:
            self.checkpoint.save(f"{self.phase}/{name}", state, slot=_INNER)

    def resume_inner(self, name: str) -> dict[str, Any] | None:
        """What this phase saved last under `name` in the run that is being resumed, or None.

        >>> Tools().resume_inner("descent") is None
        True
        """
        found = self.checkpoint.load(slot=_INNER) if self.checkpoint is not None else None
        return found[1] if found is not None and found[0] == f"{self.phase}/{name}" else None


def run_phases(
    phases: Phases,
    problem: Any,
    state: Any,
    tools: Tools,
    checkpoint: Checkpoint | None = None,
) -> Run:
    """Run the phases that the checkpoint has not seen finished yet.

    >>> @dataclass(frozen=True)
    ... class State:
    ...     total: float = 0.0
    >>> def add(problem, state, tools):
    ...     return State(state.total + problem), {"added": problem}
    >>> run = run_phases([("once", add), ("twice", add)], 2.5, State(), Tools())
    >>> run.state, [record.evidence for record in run.records]
    (State(total=5.0), [{'added': 2.5}, {'added': 2.5}])
    """
    require(dataclasses.is_dataclass(state), "state", "must be a dataclass", state)
    following, names = (lambda run: phases(run.state), None) if callable(phases) else _in_order(phases)
    tools = dataclasses.replace(tools, checkpoint=checkpoint)
    run = Run(state)
    try:
        with noticed_interrupts() as check:
            check()
            if checkpoint is not None:
                _restore(run, checkpoint, names)
            phase = following(run)
            while phase is not None:
                tools.phase = phase[0]
                _advance(run, *phase, problem, tools)
                check()
                phase = None if run.stopped is not None else following(run)
                if phase is not None and tools.out_of_time:
                    run.out_of_time = True
                    break
    except KeyboardInterrupt:
        run.interrupted = True
    return run


def _in_order(
    phases: Sequence[tuple[str, PhaseFunction]],
) -> tuple[Callable[[Run], tuple[str, PhaseFunction] | None], list[str]]:
    """From a run to the phase of the list that comes next, and the names in order."""
    names = [name for name, _ in phases]
    require(len(set(names)) == len(names), "phases", "must have different names", names)
    return lambda run: phases[len(run.records)] if len(run.records) < len(phases) else None, names


def _advance(run: Run, name: str, function: PhaseFunction, problem: Any, tools: Tools) -> None:
    started = time.perf_counter()
    silent = getattr(function, "shows_itself", False)
    with nullcontext() if silent else tools.progress.phase(name):
        try:
            state, info = function(problem, run.state, tools)
        except Stop as stop:
            run.stopped = stop.with_traceback(None)  # the frames would keep every array of the phase alive
            state, info = (run.state if stop.state is None else stop.state), stop.evidence
        state = _settled(state, type(run.state), name, run)
    record = Record(name, time.perf_counter() - started, _jsonable(info))
    kept = run.stopped is None and not getattr(function, "never_saved", False)
    if tools.checkpoint is not None and kept:
        _save(tools.checkpoint, state, [*run.records, record])
    run.state = state
    run.records.append(record)


def _settled(state: Any, kind: type, name: str, run: Run) -> Any:
    if type(state) is not kind:
        raise TypeError(f"phase {name} must return a {kind.__name__} as state, not {type(state).__name__}")
    values = {name: _settle(value) for name, value in fields_of(state).items()}
    for field_name, value in values.items():
        if not _finite(value):
            raise PhaseFailed(name, field_name, run)
    return dataclasses.replace(state, **values)


def _settle(value: Any) -> Any:
    if is_array(value):
        return to_array(value)
    if type(value) in (list, tuple):
        return type(value)(_settle(entry) for entry in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        settled = {name: _settle(entry) for name, entry in fields_of(value).items()}
        return dataclasses.replace(value, **settled)
    return value


def _finite(value: Any) -> bool:
    if dataclasses.is_dataclass(value):
        return all(_finite(entry) for entry in fields_of(value).values())
    if isinstance(value, list | tuple):
        return all(_finite(entry) for entry in value)
    return not (isinstance(value, np.ndarray) and value.dtype.kind == "f") or bool(np.isfinite(value).all())


def _jsonable(value: Any) -> Any:
    if is_array(value) or isinstance(value, np.generic):
        return np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return {str(key): _jsonable(entry) for key, entry in value.items()}
    return [_jsonable(entry) for entry in value] if isinstance(value, list | tuple) else value


def _save(checkpoint: Checkpoint, state: Any, records: list[Record]) -> None:
    kept = checkpoint.save(
        records[-1].name, {"fields": fields_of(state), "records": [list(record) for record in records]}
    )
    if kept:
        checkpoint.drop(_INNER)


def _restore(run: Run, checkpoint: Checkpoint, names: list[str] | None) -> None:
    found = checkpoint.load()
    if found is None:
        return
    try:
        records = [_record(*entry) for entry in found[1]["records"]]
        state = type(run.state)(**found[1]["fields"])
    except (TypeError, KeyError, ValueError) as error:
        kind = type(run.state).__name__
        raise CheckpointError(
            f"the checkpoint's state does not fit {kind} ({describe(str(error))})"
        ) from error
    finished = [record.name for record in records]
    if names is not None and finished != names[: len(finished)]:
        raise CheckpointError(f"the checkpoint has the phases {describe(finished)}; this run has {names}")
    run.state, run.records = state, records


def _record(name: Any, seconds: Any, evidence: Any) -> Record:
    """A record as it was saved; anything else is refused, because reports are made of it."""
    fits = isinstance(name, str) and isinstance(seconds, float) and isinstance(evidence, dict)
    require(fits, "records", "must each hold a name, seconds and evidence", [name, seconds])
    return Record(name, seconds, evidence)
