from __future__ import annotations

import contextlib
import errno
import signal
import sys
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

from attnlearn._files import CannotWrite
from attnlearn._interrupts import noticed_interrupts
from attnlearn.engine import (
    Checkpoint,
    CheckpointError,
    CheckpointWarning,
    PhaseFailed,
    Progress,
    Stop,
    Tools,
    _checkpoint,
    run_phases,
)


@dataclass(frozen=True)
class State:
    x: np.ndarray | None = None
    heads: list | None = None
    count: int = 0


def begin(problem, state, tools):
    return replace(state, x=np.asfortranarray(tools.rng("x").standard_normal((3, 4)))), {"size": np.int64(12)}


def double(problem, state, tools):
    return replace(state, x=jnp.asarray(2 * state.x), count=1), {"spectrum": np.ones(2), "pair": (1, 2)}


def interrupt(problem, state, tools):
    raise KeyboardInterrupt


def stop(problem, state, tools):
    raise Stop("TOO_FEW_EXAMPLES", {"needed": 10}, replace(state, count=5))


def spoil(problem, state, tools):
    return replace(state, heads=[np.ones(2), np.array([1.0, np.nan])]), {}


def test_states_are_contiguous_numpy_and_evidence_is_plain():
    run = run_phases([("begin", begin), ("double", double)], None, State(), Tools(seed=1))
    assert type(run.state.x) is np.ndarray
    assert run.state.x.flags.c_contiguous
    assert [record.name for record in run.records] == ["begin", "double"]
    assert run.records[1].evidence == {"spectrum": [1.0, 1.0], "pair": [1, 2]}
    assert all(record.seconds >= 0 for record in run.records)
    assert not run.interrupted
    assert run.stopped is None


def test_interrupted_run_keeps_what_it_has_and_resumes_with_its_evidence(tmp_path):
    whole = run_phases([("begin", begin), ("double", double)], None, State(), Tools(seed=1))
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        run = run_phases([("begin", begin), ("double", interrupt)], None, State(), Tools(seed=1), checkpoint)
    assert run.interrupted
    assert [record.name for record in run.records] == ["begin"]

    def never(problem, state, tools):
        raise AssertionError("a finished phase ran again")

    with Checkpoint(tmp_path, {}, resume=True) as checkpoint:
        phases = [("begin", never), ("double", double)]
        again = run_phases(phases, None, State(), Tools(seed=1), checkpoint)
    assert again.state.x.tobytes() == whole.state.x.tobytes()
    assert [record.evidence for record in again.records] == [record.evidence for record in whole.records]


def test_a_run_whose_time_is_up_ends_before_the_next_phase_if_there_is_one():
    late = Tools(seed=1, deadline=0.0)
    cut = run_phases([("begin", begin), ("double", double)], None, State(), late)
    assert cut.out_of_time
    assert [record.name for record in cut.records] == ["begin"]
    assert not run_phases([("begin", begin)], None, State(), late).out_of_time


def test_a_phase_that_is_never_saved_runs_in_every_run(tmp_path):
    ran = []

    def fresh(problem, state, tools):
        ran.append(1)
        return state, {}

    fresh.never_saved = True
    for number in (1, 2):
        with Checkpoint(tmp_path, {}, resume=True) as checkpoint:
            run = run_phases([("begin", begin), ("fresh", fresh)], None, State(), Tools(seed=1), checkpoint)
        assert len(ran) == number
        assert [record.name for record in run.records] == ["begin", "fresh"]


def test_stop_is_recorded():
    run = run_phases([("begin", begin), ("stop", stop), ("double", double)], None, State(), Tools())
    assert run.stopped.outcome_name == "TOO_FEW_EXAMPLES"
    assert run.records[-1].name == "stop"
    assert run.records[-1].evidence == {"needed": 10}
    assert run.state.count == 5
    assert len(run.records) == 2


def test_non_finite_state_names_phase_and_field():
    with pytest.raises(PhaseFailed, match=r"phase spoil .* in heads") as caught:
        run_phases([("begin", begin), ("spoil", spoil)], None, State(), Tools())
    assert [record.name for record in caught.value.run.records] == ["begin"]


def test_other_phases_or_states_are_refused(tmp_path):
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        run_phases([("begin", begin)], None, State(), Tools(), checkpoint)
        with pytest.raises(CheckpointError, match="phases"):
            run_phases([("start", begin)], None, State(), Tools(), checkpoint)

        @dataclass(frozen=True)
        class Other:
            y: float = 0.0

        with pytest.raises(CheckpointError, match="does not fit"):
            run_phases([("begin", begin)], None, Other(), Tools(), checkpoint)
    with pytest.raises(TypeError, match="must return a State"):
        run_phases([("bad", lambda problem, state, tools: (None, {}))], None, State(), Tools())
    with pytest.raises(ValueError, match="different names"):
        run_phases([("a", begin), ("a", double)], None, State(), Tools())


def test_inner_checkpoints_belong_to_their_phase(tmp_path):
    def long(problem, state, tools):
        assert tools.resume_inner("loop") is None
        tools.checkpoint_inner("loop", {"step": 4})
        assert tools.resume_inner("loop") == {"step": 4}
        assert tools.resume_inner("other") is None
        raise KeyboardInterrupt

    def resumed(problem, state, tools):
        return replace(state, count=tools.resume_inner("loop")["step"]), {}

    def fresh(problem, state, tools):
        assert tools.resume_inner("loop") is None
        return state, {}

    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        assert run_phases([("a", long), ("b", fresh)], None, State(), Tools(), checkpoint).interrupted
        run = run_phases([("a", resumed), ("b", fresh)], None, State(), Tools(), checkpoint)
    assert run.state.count == 4


def test_progress_sees_every_phase():
    class Log(Progress):
        def __init__(self):
            super().__init__()
            self.names = []

        def _opened(self, phase):
            self.names.append(phase.name)

    log = Log()
    run_phases([("begin", begin), ("double", double)], None, State(), Tools(progress=log))
    assert log.names == ["begin", "double"]


def test_an_interrupt_that_a_destructor_swallows_still_ends_the_run(monkeypatch):
    class Silent:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)  # Python prints what a destructor raises, and drops it

    def swallow(problem, state, tools):
        silent = Silent()
        del silent
        return state, {}

    before = signal.getsignal(signal.SIGINT)
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: dropped.append(failure.exc_type))
    run = run_phases([("begin", begin), ("swallow", swallow), ("double", double)], None, State(), Tools())
    assert dropped == [KeyboardInterrupt]
    assert run.interrupted
    assert [record.name for record in run.records] == ["begin", "swallow"]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_was_swallowed_before_the_run_ends_it_too():
    with noticed_interrupts():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        run = run_phases([("begin", begin)], None, State(), Tools())
    assert run.interrupted
    assert run.records == []
    assert not run_phases([("begin", begin)], None, State(), Tools()).interrupted


def test_an_interrupt_that_becomes_another_error_is_still_one():
    def change(problem, state, tools):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("as C code does") from None

    run = run_phases([("begin", begin), ("change", change)], None, State(), Tools())
    assert run.interrupted
    with pytest.raises(TypeError):
        run_phases([("change", lambda *_: 1 + "")], None, State(), Tools())


def test_a_handler_of_the_caller_is_left_alone():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        mine = signal.getsignal(signal.SIGINT)

        def press(problem, state, tools):
            signal.raise_signal(signal.SIGINT)
            return state, {}

        run = run_phases([("press", press), ("double", begin)], None, State(), Tools())
        assert heard == [1]
        assert not run.interrupted
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("records", [["begin", 0.5]]),
        ("records", [["begin", 0.5, None]]),
        ("records", [[[], 0.5, {}]]),
        ("records", 7),
        ("fields", [1]),
        ("fields", {"foreign": 1}),
    ],
)
def test_states_that_no_run_saved_are_refused(name, value, tmp_path):
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        checkpoint.save("begin", {"records": [["begin", 0.5, {}]], "fields": {"count": 1}} | {name: value})
        with pytest.raises(CheckpointError, match="does not fit State"):
            run_phases([("begin", begin), ("double", double)], None, State(), Tools(), checkpoint)


def test_a_full_disk_is_a_warning_and_the_run_goes_on(tmp_path, monkeypatch):
    def full(path, tensors, metadata):
        raise CannotWrite(path, OSError(errno.ENOSPC, "No space left on device"))

    def long(problem, state, tools):
        tools.checkpoint_inner("loop", {"step": 4})
        with monkeypatch.context() as patch:
            patch.setattr(_checkpoint, "write_tensors", full)
            with pytest.warns(CheckpointWarning, match=r"no checkpoint after a/loop: .*No space left"):
                tools.checkpoint_inner("loop", {"step": 5})
        assert tools.resume_inner("loop") == {"step": 4}
        return state, {}

    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        run = run_phases([("a", long), ("b", begin)], None, State(), Tools(), checkpoint)
        assert len(run.records) == 2
        monkeypatch.setattr(_checkpoint, "write_tensors", full)
        with pytest.warns(CheckpointWarning):
            run = run_phases([("a", begin), ("b", begin), ("c", double)], None, State(), Tools(), checkpoint)
        assert len(run.records) == 3
        assert checkpoint.load()[0] == "b"
