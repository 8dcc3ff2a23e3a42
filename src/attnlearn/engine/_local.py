"""Local processes for the map: joblib's loky workers, replaced when they die and gone when their parent is.

A worker that dies takes the whole pool with it. The blocks that had no answer yet then go to a new pool, in the
same order, so the run ends as it would have. Each worker looks after the process that started it: a parent that
is killed cannot end its workers, and they would keep memory and the parent's standard output for minutes.

Cost: a dead worker costs the start of a pool and the blocks that were under way. What can fail: `EngineError`
when workers die several times without one answer between.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from attnlearn.engine import _threads
from attnlearn.engine._calibration import PARENT_LOOK_SECONDS, WORKER_DEATHS
from attnlearn.engine._failure import EngineError


def local(call: Callable, tasks: Iterable, workers: int, threads: int) -> Generator:
    """`call(task)` for each task, computed by `workers` processes of `threads` threads; in order."""
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import BrokenProcessPool

    settings = {"initializer": _start_worker, "initargs": (threads, os.getpid())}
    ledger, deaths = Ledger(tasks), 0
    while True:
        with parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=threads, **settings):
            parallel = Parallel(return_as="generator")
        try:
            for value in _results(parallel, (delayed(call)(task) for task in ledger.unanswered())):
                ledger.answered()
                deaths = 0
                yield value
            return
        except BrokenProcessPool as error:
            deaths += 1
            if deaths == WORKER_DEATHS:
                often = f"{deaths} worker processes died one after another, often for want of memory"
                raise EngineError(f"{often} ({_first_line(error)})") from error


class Ledger:
    """The tasks in order, and which of them have no answer yet.

    >>> ledger = Ledger("abc")
    >>> first = ledger.unanswered()
    >>> next(first), next(first)
    ('a', 'b')
    >>> ledger.answered()
    >>> list(ledger.unanswered()), list(first)
    (['b', 'c'], [])
    """

    def __init__(self, tasks: Iterable) -> None:
        self._tasks = iter(tasks)
        self._open: deque = deque()
        self._lock = threading.Lock()
        self._reader: object = None

    def unanswered(self) -> Iterator:
        """Tasks without an answer, then the rest; whoever read them before gets no more."""
        with self._lock:
            self._reader = me = object()
            waiting = list(self._open)
        return self._read(me, waiting)

    def _read(self, me: object, waiting: list) -> Iterator:
        yield from waiting
        while True:
            with self._lock:
                if self._reader is not me:
                    return
                try:
                    task = next(self._tasks)
                except StopIteration:
                    return
                self._open.append(task)
            yield task

    def answered(self) -> None:
        """The first of the open tasks is done."""
        self._open.popleft()


def _start_worker(threads: int, parent: int) -> None:
    """Run once in a new worker, before any task reaches it."""
    _threads.start_worker(threads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="attnlearn-parent").start()


def _end_with(parent: int) -> None:
    # Linux could send a signal instead, but it does so when the *thread* ends that started this process.
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_SECONDS)
    os._exit(1)


def _results(parallel: Any, calls: Iterable) -> Generator:
    results = None
    try:
        with _workers_without_interrupts():
            results = parallel(calls)
        for value in results:  # noqa: UP028 - `yield from` would close the results before the filter is set
            yield value
    finally:
        with warnings.catch_warnings(), _without_late_tracebacks():
            warnings.simplefilter("ignore")  # that results nobody reads are lost is what closing means
            if results is not None:
                results.close()


@contextmanager
def _workers_without_interrupts() -> Iterator[None]:
    """Start workers that hear no Ctrl-C: at a terminal it reaches them too, and one that is still starting prints a traceback.

    They inherit the mask of the thread that starts them. The parent hears what came meanwhile at the end of the block, and ends them.
    """
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    for tracker in (resource_tracker, loky_tracker):  # starting one would take the mask away
        tracker.ensure_running()
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _without_late_tracebacks() -> AbstractContextManager[None]:
    """Keep silent about loky's manager when it is told to stop between taking a task in and handing it on.

    Loky forgets the tasks that wait and then looks for one more of them: its manager, a thread that was
    about to end, ends with a KeyError instead. The workers are gone by then and nobody awaits the tasks.
    """
    return _threads.overlooked("ExecutorManagerThread", KeyError)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
