"""Engines: the same answer in one process, in two, and on a cluster that loses a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from attnlearn import AttentionLayer, data, recover
from attnlearn.data import RecordedWriter, as_examples
from attnlearn.engine import Engine, Progress, Tools, blocks
from attnlearn.recovery import _blocks
from attnlearn.recovery._of_moment import FromMoment
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import measure
from attnlearn.recovery._trail import Trail
from attnlearn.recovery.moment import _operator
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.solve._split import Split

TOKENS, DIM = 4, 6


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    for module in (_blocks, _operator):
        monkeypatch.setattr(module, "blocks", lambda num, _: blocks(num, 256))


@pytest.fixture
def folder(tmp_path):
    layer = AttentionLayer.random(2, DIM, seed=1)
    with RecordedWriter(tmp_path / "data", shard_bytes=2**17) as writer:
        for x in data.Gaussian(TOKENS, DIM).stream(4000, 500):
            writer.write(x, layer(x))
    return tmp_path / "data"


@pytest.mark.parametrize("stored", ["arrays", "shards"])
def test_two_processes_give_the_bytes_of_one(stored: str, folder, small_blocks) -> None:
    examples = data.Recorded(folder)
    if stored == "arrays":
        x, y, _ = examples.take(np.arange(examples.num))
        examples = as_examples(np.asarray(x), np.asarray(y))
    problem = Problem(examples, Split.make(examples.num))
    found = []
    for engine in (Engine(), Engine(workers=2)):
        tools = Tools(engine=engine)
        signals = measure(problem, tools)
        found.append((signals, FromMoment().propose(problem, signals, Trail(), tools)))
    (signals, one), (other, two) = found
    assert signals.evidence() == other.evidence()
    np.testing.assert_array_equal(signals.linear, other.linear)
    for name in ("values", "query_basis", "value_basis"):
        np.testing.assert_array_equal(getattr(one.moment, name), getattr(two.moment, name))
    for name in ("theta", "w"):
        np.testing.assert_array_equal(
            getattr(one.candidate.weights.layer, name), getattr(two.candidate.weights.layer, name)
        )


def test_a_portion_reads_the_same_sequences(folder) -> None:
    recorded = data.Recorded(folder)
    chosen = np.array([3, 700, 2999, 1200])
    part, there = recorded.portion(chosen)
    np.testing.assert_array_equal(part.take(there).x, recorded.take(chosen).x)
    assert part.num < recorded.num


class Killer(Progress):
    """Kills a worker after the first pass of the phase `name`."""

    def __init__(self, pid: int, name: str) -> None:
        super().__init__()
        self.pid, self.name, self.during = pid, name, []

    def _moved(self, phase) -> None:
        if phase.name == self.name and not self.during:
            self.during = [phase.name for phase in self._phases]
            os.kill(self.pid, signal.SIGKILL)


@contextmanager
def restarted():
    """A cluster of two workers whose nannies replace what dies."""
    distributed = pytest.importorskip("distributed", reason="Dask is an extra")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", protocol="tcp"
    ) as cluster:
        yield cluster.scheduler_address, cluster.workers[0].pid


@contextmanager
def lost_for_good():
    """A scheduler and two workers as a batch system would start them: nobody replaces a worker."""
    distributed = pytest.importorskip("distributed", reason="Dask is an extra")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        place = str(Path(folder) / "scheduler.json")
        start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
        work = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1"]
        work += ["--no-dashboard", "--local-directory", folder]
        processes = []
        for command in (start, work, work):
            process = subprocess.Popen([*command, "--scheduler-file", place], stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        client = stack.enter_context(distributed.Client(scheduler_file=place, timeout=60))
        client.wait_for_workers(2, timeout=60)
        yield client.scheduler.address, processes[1].pid
        assert len(client.scheduler_info()["workers"]) == 1


# Dask and tornado close sockets late when a worker is killed; nothing a caller could do about it.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("cluster", [restarted, lost_for_good])
def test_a_cluster_that_loses_a_worker_finishes_with_the_same_outcome(cluster, folder, small_blocks) -> None:
    here = recover(folder)
    with cluster() as (address, pid):
        killer = Killer(pid, "moment")
        there = recover(folder, engine=f"dask:{address}", progress=killer)
    assert killer.during == ["moment"]
    assert there.outcome is here.outcome
    assert there.certified
    np.testing.assert_allclose(there.layer.theta, here.layer.theta, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_sculpting_filters_examples_on_the_workers(seed: int) -> None:
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed)
    x = data.Boolean(4, 8).sample(200_000, seed=seed)
    config = SculptConfig(batch=20_000, max_rounds=1)
    runs = [
        recover(x, layer(x), method="sculpt", config=config, engine=engine, raise_on_failure=False)
        for engine in (1, 2)
    ]
    assert runs[0].outcome is runs[1].outcome
    first, second = ([p.evidence.get("rounds") for p in run.phases if p.name == "carve"] for run in runs)
    assert first == second
