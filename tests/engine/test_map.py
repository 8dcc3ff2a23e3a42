from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from attnlearn.engine import Engine, EngineError, Progress, _cluster, _local, blocks
from attnlearn.engine._threads import own_threads

from . import _work


@pytest.mark.parametrize(
    ("spec", "engine"),
    [
        (None, Engine()),
        (3, Engine(workers=3)),
        ("3", Engine(workers=3)),
        ("2x1", Engine(workers=2, threads=1)),
        ("dask:tcp://h:1", Engine(address="tcp://h:1")),
        (Engine(workers=2), Engine(workers=2)),
    ],
)
def test_parse(spec, engine):
    assert Engine.parse(spec) == engine


@pytest.mark.parametrize("spec", [0, -1, "0", "two", "dask:", "2x0", True, 1.5, ""])
def test_parse_refuses(spec):
    with pytest.raises(ValueError, match=r"^engine: "):
        Engine.parse(spec)


def test_one_worker_cannot_change_its_threads():
    with pytest.raises(ValueError, match="cannot be changed"):
        Engine(workers=1, threads=own_threads() + 1)


@pytest.mark.parametrize(("total", "size"), [(0, 3), (1, 3), (7, 3), (9, 3)])
def test_blocks_cover_everything_once(total, size):
    covered = [index for block in blocks(total, size) for index in range(total)[block]]
    assert covered == list(range(total))


def test_one_and_two_workers_give_the_same_bytes():
    values = [Engine.parse(n).reduce(_work.heavy_block, range(5), _work.add) for n in (1, 2)]
    assert {name: value.tobytes() for name, value in values[0].items()} == {
        name: value.tobytes() for name, value in values[1].items()
    }


def test_workers_are_other_processes_with_limited_threads_and_no_workers_of_their_own():
    seen = Engine.parse("2x1").map(_work.threads_seen, range(4))
    assert os.getpid() not in {process for process, *_ in seen}
    assert all(set(blas) == {1} and announced == "1" and one == 1 for _, blas, announced, one in seen)


def test_errors_of_the_work_arrive_as_they_are():
    for workers in (1, 2):
        with pytest.raises(ZeroDivisionError):
            Engine.parse(workers).map(lambda value: 1 // value, [1, 0, 1])


def test_the_blocks_of_a_killed_local_worker_are_computed_again(tmp_path):
    items = [np.full(1, value) for value in range(8)]
    function = partial(_work.die_once, str(tmp_path))
    assert Engine.parse(2).map(function, iter(items)) == [value * value for value in range(8)]
    assert (tmp_path / "died-3").exists()


def test_a_block_that_kills_every_worker_is_an_engine_error():
    started = time.monotonic()
    with pytest.raises(EngineError, match="3 worker processes died one after another"):
        Engine.parse(2).map(_work.die, range(5))
    assert time.monotonic() - started < 60
    assert Engine.parse(2).map(abs, [-1, 2]) == [1, 2]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(end):
    code = "from attnlearn.engine import Engine; from tests.engine._work import announce; Engine.parse(2).map(announce, range(1000))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    workers = {int(process.stdout.readline()) for _ in range(6)}
    assert process.pid not in workers
    os.kill(process.pid, end)
    started = time.monotonic()
    process.stdout.read()  # ends when the last process that holds our pipe has ended, trackers included
    assert time.monotonic() - started < 10
    process.stdout.close()
    process.wait()
    assert not any(_work.alive(worker) for worker in workers)


def test_results_stream_in_order_and_report_progress():
    class Counter(Progress):
        count = 0

        def update(self, advance=1, **figures):
            self.count += advance

    counter = Counter()
    assert Engine.parse(2).map(lambda value: value, range(20), progress=counter) == list(range(20))
    assert counter.count == 20


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_in_the_middle_of_a_reduction_leaves_the_engine_usable(workers):
    engine = Engine.parse(workers)
    with pytest.raises(ZeroDivisionError):
        engine.reduce(abs, range(50), lambda total, value: total // 0)
    assert engine.map(abs, [-1, 2]) == [1, 2]


def test_a_manager_stopped_between_two_tasks_says_nothing(monkeypatch, capfd):
    # Loky's race, made certain: a task is taken in at the very moment in which the tasks are forgotten.
    from joblib.externals.loky import process_executor

    manager, ends = process_executor._ExecutorManagerThread, []
    forget = manager.flag_executor_shutting_down

    def forget_and_take_in(self):
        forget(self)
        ends.append(self)
        self.work_ids_queue.put(-1)

    monkeypatch.setattr(manager, "flag_executor_shutting_down", forget_and_take_in)
    stream = Engine(workers=2).stream(_work.slowly, range(50))
    assert next(stream) == 0
    stream.close()
    monkeypatch.undo()
    assert ends
    assert "Traceback" not in capfd.readouterr().err
    assert Engine(workers=2).map(abs, [-1, 2]) == [1, 2]


def test_another_thread_that_fails_meanwhile_is_still_reported(monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    with _local._without_late_tracebacks():
        thread = threading.Thread(target=lambda: {}[0], name="somebody else")
        thread.start()
        thread.join()
    assert [failure.exc_type for failure in reported] == [KeyError]


def test_reducing_nothing_is_refused():
    with pytest.raises(ValueError, match="items"):
        Engine().reduce(abs, [], max)


def test_unreachable_cluster(monkeypatch):
    pytest.importorskip("distributed", reason="Dask is an extra")
    monkeypatch.setattr("attnlearn.engine._cluster.DASK_CONNECT_SECONDS", 0.5)
    with pytest.raises(EngineError, match="no Dask scheduler"):
        Engine.parse("dask:tcp://127.0.0.1:9").map(abs, [1])


def test_lost_workers_are_one_line_and_exit_code_1(monkeypatch, tmp_path, capsys):
    from attnlearn import AttentionLayer
    from attnlearn.cli.__main__ import main

    pytest.importorskip("distributed", reason="Dask is an extra")
    monkeypatch.setattr("attnlearn.engine._cluster.DASK_CONNECT_SECONDS", 0.5)
    x = np.random.default_rng(0).standard_normal((400, 4, 4))
    np.savez(tmp_path / "data.npz", x=x, y=AttentionLayer.random(1, 4)(x))
    assert main(["recover", str(tmp_path / "data.npz"), "--engine", "dask:tcp://127.0.0.1:9", "--quiet"]) == 1
    lines = capsys.readouterr().err.strip().split("\n")
    assert lines == ["attnlearn: no Dask scheduler answers at tcp://127.0.0.1:9 (OSError)"]


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed", reason="Dask is an extra")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", protocol="tcp"
    ) as cluster:
        yield cluster


# Dask and tornado close sockets late when a worker is killed; nothing a caller could do about it.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_two_dask_workers_agree_and_one_may_die(cluster, tmp_path):
    engine = Engine.parse(f"dask:{cluster.scheduler_address}")
    here = Engine().reduce(_work.heavy_block, range(4), _work.add)
    there = engine.reduce(_work.heavy_block, range(4), _work.add)
    for name, value in here.items():
        np.testing.assert_allclose(there[name], value, rtol=1e-5, atol=1e-5)
    items = [np.full(10_000, value) for value in range(12)]  # large enough that joblib would scatter them
    assert engine.map(partial(_work.die_once, str(tmp_path)), items) == [value * value for value in range(12)]
    assert (tmp_path / "died-3").exists()


class Machines:
    """A scheduler and workers as processes of their own, to be killed one by one."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.processes = []
        host, port = self.address.removeprefix("tcp://").split(":")
        self.scheduler = self.start("scheduler", "--host", host, "--port", port)

    def start(self, kind, *options):
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options, "--no-dashboard"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes.append(subprocess.Popen(command, cwd=Path(__file__).parents[2], **quiet))
        return self.processes[-1]

    def worker(self):
        return self.start("worker", self.address, "--nthreads", "1", "--no-nanny")

    def fails(self, match, function=abs, items=(-1,), seconds=20):
        started = time.monotonic()
        with pytest.raises(EngineError, match=match):
            Engine.parse(f"dask:{self.address}").map(function, items)
        assert time.monotonic() - started < seconds


@pytest.fixture
def machines():
    pytest.importorskip("distributed", reason="Dask is an extra")
    machines = Machines()
    yield machines
    for process in machines.processes:
        process.kill()
        process.wait()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_that_goes_away_is_an_engine_error(machines, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(_cluster, "DASK_NO_WORKER_SECONDS", 1.0)
    machines.fails("has had no worker for 1 s")  # none at the start
    monkeypatch.setattr(_cluster, "DASK_NO_WORKER_SECONDS", 15.0)
    for victim, match in [
        (machines.worker(), "no worker"),
        (machines.scheduler, "scheduler at .* went away"),
    ]:
        Engine.parse(f"dask:{machines.address}").map(abs, [-1])  # waits for the worker
        monkeypatch.setattr(_cluster, "DASK_NO_WORKER_SECONDS", 1.0)
        threading.Timer(0.5, victim.kill).start()
        machines.fails(match, _work.slow_square, range(50))
        monkeypatch.setattr(_cluster, "DASK_NO_WORKER_SECONDS", 15.0)
        machines.worker()
    assert "Traceback" not in capfd.readouterr().err


def test_ctrl_c_stops_the_workers():
    code = (
        "from attnlearn.engine import Engine; from tests.engine._work import slow_square; print('go', flush=True)\n"
        "try: Engine.parse(2).map(slow_square, range(1000))\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout.readline() == "go\n"
    time.sleep(2.5)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert output == "interrupted\n"
    assert "Traceback" not in errors


def test_workers_hear_no_ctrl_c_and_the_parent_does(seed):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert Engine.parse("2").map(_work.deaf, [signal.SIGINT, signal.SIGTERM]) == [True, False]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert signal.SIGINT not in before
