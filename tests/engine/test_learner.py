"""The scaffold of every learner: keywords, checkpoints, time limits, failures and exceptions, whatever is learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from attnlearn import Certificate, Claim, NotEstablished, Outcome, Solution
from attnlearn.engine import CheckpointError, Learner, Options, Stop, learn

CERTIFICATE = Certificate((Claim("C1", "small error", True),))


@dataclass(frozen=True)
class State:
    x: Any = None


def begin(problem, state, tools):
    return State(tools.rng("begin").standard_normal(3)), {"began": True}


def double(problem, state, tools):
    return State(2 * state.x), {}


def spoil(problem, state, tools):
    return State(np.full(3, np.nan)), {}


def interrupt(problem, state, tools):
    raise KeyboardInterrupt


def stop(problem, state, tools):
    raise Stop("TOO_FEW_EXAMPLES", {"examples_needed": 10})


class Doubling(Learner):
    name = "double"

    def __init__(self, *phases, certificate=CERTIFICATE, outcome=Outcome.RECOVERED, settled=False) -> None:
        self.problem, self.state = None, State()
        self.phases = [(function.__name__, function) for function in phases or (begin, double)]
        self.certificate, self.outcome, self.settled = certificate, outcome, settled

    def identity(self):
        return {"data": "none"}

    def so_far(self, state):
        return state.x, {"examples": 3}

    def finished(self, state):
        return self.settled

    def conclude(self, run, layer, tools):
        return Solution(layer, self.outcome, self.certificate, stats={"judged": True})


def run(learner: Learner, **keywords) -> Solution:
    options = Options(**{"raise_on_failure": False, **keywords})
    return learn(learner, options, options.tools())


def test_a_run_that_ends_by_itself_is_judged_once() -> None:
    found = run(Doubling(), seed=3, target=0.5)
    assert found.certified
    assert [phase.name for phase in found.phases] == ["begin", "double", "certify"]
    assert found.phases[-1].evidence == {"outcome": "RECOVERED"}
    assert found.stats == {"seed": 3, "target": 0.5, "examples": 3, "judged": True}


def test_where_there_is_nothing_to_certify_no_phase_says_so() -> None:
    found = run(Doubling(certificate=Certificate(), outcome=Outcome.NOT_ATTENTION))
    assert [phase.name for phase in found.phases] == ["begin", "double"]


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.INTERRUPTED])
def test_achieved_alone_decides_whether_a_run_raises(outcome: Outcome) -> None:
    learner = Doubling(outcome=outcome)
    quiet = run(learner)
    if quiet.achieved:
        assert run(learner, raise_on_failure=True).outcome is outcome
        return
    with pytest.raises(NotEstablished) as caught:
        run(learner, raise_on_failure=True)
    assert caught.value.solution.outcome is outcome
    assert str(caught.value) == f"{outcome.name}: {quiet.verdict}"


@pytest.mark.parametrize("raise_on_failure", [True, False])
def test_an_interrupt_ends_the_caller_too(raise_on_failure: bool, tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        run(Doubling(begin, interrupt), checkpoint=tmp_path / "run", raise_on_failure=raise_on_failure)
    assert caught.value.solution.outcome is Outcome.INTERRUPTED
    assert caught.value.solution.layer is not None


def test_a_phase_that_fails_keeps_what_was_known_before_it() -> None:
    found = run(Doubling(begin, spoil))
    assert found.outcome is Outcome.NUMERICAL_FAILURE
    assert "phase spoil left a value that is not finite in x" in found.verdict
    assert np.isfinite(found.layer).all()


def test_a_phase_that_stops_the_run_says_why() -> None:
    found = run(Doubling(begin, stop, double))
    assert found.outcome is Outcome.TOO_FEW_EXAMPLES
    assert found.stats["examples_needed"] == 10
    assert [phase.name for phase in found.phases] == ["begin", "stop"]


def test_a_run_can_be_stopped_before_its_first_phase(tmp_path) -> None:
    learner = Doubling()

    def opened(saved):
        raise Stop("ORACLE_FAILED", {"error": "nobody is there"})

    learner.opened = opened
    found = run(learner, checkpoint=tmp_path / "run")
    assert found.outcome is Outcome.ORACLE_FAILED
    assert "nobody is there" in found.verdict
    assert found.phases == ()


def test_a_time_limit_ends_the_run_and_a_checkpoint_goes_on(tmp_path) -> None:
    whole, saved = run(Doubling()), tmp_path / "run"
    cut = run(Doubling(), time_limit=1e-9, checkpoint=saved)
    assert cut.outcome is Outcome.BUDGET_SPENT
    assert "the time limit of 1e-09 s is up" in cut.verdict
    assert cut.layer is not None
    resumed = run(Doubling(), checkpoint=saved)
    assert resumed.layer.tobytes() == whole.layer.tobytes()
    settled = run(Doubling(settled=True), time_limit=1e-9)
    assert settled.certified
    assert [phase.name for phase in settled.phases] == ["begin", "certify"]


@pytest.mark.parametrize(
    ("keywords", "differs"),
    [({"seed": 1}, "seed was 0 and is 1"), ({"target": 0.5}, "target was null and is 0.5")],
)
def test_a_checkpoint_of_another_run_is_refused(keywords, differs: str, tmp_path) -> None:
    run(Doubling(), checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointError, match=differs):
        run(Doubling(), checkpoint=tmp_path / "run", **keywords)
    other = Doubling()
    other.name = "halve"
    with pytest.raises(CheckpointError, match='verb was "double" and is "halve"'):
        run(other, checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointError, match="already holds a checkpoint"):
        run(Doubling(), checkpoint=tmp_path / "run", resume=False)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"target": 0}, "target: must be positive, got 0"),
        ({"target": float("nan")}, "target: must be positive, got nan"),
        ({"time_limit": -1}, r"time_limit: must be positive \(seconds\), got -1"),
        ({"seed": -1}, "seed: must be an integer >= 0, got -1"),
        ({"seed": True}, "seed: must be an integer >= 0, got True"),
        (
            {"device": "cuda:77"},
            'device: must be None or a device such as "cpu", "cpu:torch" or "cuda" that torch has.*',
        ),
    ],
)
def test_keywords_that_break_a_rule_are_one_line(keywords, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Options(**keywords)
    assert replace(Options(), seed=np.int64(3)).tools().seed == 3
