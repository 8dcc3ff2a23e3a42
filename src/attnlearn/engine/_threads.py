"""How many threads BLAS and XLA may use, in this process and in the workers.

Both libraries split a sum by their number of threads, so the last bits of a result depend on that number
(measured: XLA's reductions and LAPACK's singular vectors differ between one and two threads). Work gives
the same bytes in two processes only if both use the same number, and this file is where it is fixed.

XLA reads its number once, when JAX makes its first array: a worker must be told before that, and the number
of the calling process cannot be changed later, only learned.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache, partial
from itertools import islice
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController, threadpool_info

Item = TypeVar("Item")
Value = TypeVar("Value")

XLA_VARIABLE = "PJRT_NPROC"
WORKER_VARIABLE = "ATTNLEARN_WORKER"


def own_threads() -> int:
    """Threads of XLA in this process, as it decides them itself.

    >>> own_threads() >= 1
    True
    """
    for variable in (XLA_VARIABLE, "NPROC"):
        if os.environ.get(variable, "").isdigit():
            return max(1, int(os.environ[variable]))
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_blas_threads() -> int:
    """Threads of BLAS in this process: its default, or what OMP_NUM_THREADS and the like allow.

    >>> own_blas_threads() >= 1
    True
    """
    return max((info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"), default=1)


def inside_worker() -> bool:
    """Whether this process was started by a map, and must not start workers of its own."""
    return WORKER_VARIABLE in os.environ


def start_worker(threads: int) -> None:
    """Run once in a new local worker, before any task reaches it."""
    os.environ[WORKER_VARIABLE] = "1"
    os.environ[XLA_VARIABLE] = str(threads)
    # Ctrl-C reaches the whole process group; the parent ends its workers, which then have nothing to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def announce_threads(threads: int) -> None:
    """Tell an XLA that has not started yet how many threads it may use, unless its owner already did."""
    os.environ.setdefault(XLA_VARIABLE, str(threads))


@contextmanager
def limited_blas(threads: int) -> Iterator[None]:
    """Let BLAS use `threads` threads inside the block; when the last block ends it has what it had before the first.

    BLAS has one number for the whole process, so blocks in several threads share it: the block that was entered last
    and is still open decides.
    """
    block = object()
    with _blas.lock:
        if not _blas.open:
            _blas.before = _limit(threads)
        elif next(reversed(_blas.open.values())) != threads:
            _limit(threads)
        _blas.open[block] = threads
    try:
        yield
    finally:
        with _blas.lock:
            newest = next(reversed(_blas.open))
            ended = _blas.open.pop(block)
            if not _blas.open:
                if _blas.before is not None:
                    _blas.before.restore_original_limits()
                _release()
            elif newest is block and next(reversed(_blas.open.values())) != ended:
                _limit(next(reversed(_blas.open.values())))


class _Blas:
    """The open blocks of `limited_blas`, oldest first, and what BLAS had before them."""

    def __init__(self) -> None:
        self.lock, self.open, self.before = Lock(), {}, None


_blas = _Blas()
if hasattr(os, "register_at_fork"):  # another thread may hold the lock while this one forks
    os.register_at_fork(after_in_child=lambda: [setattr(state, "lock", Lock()) for state in (_blas, _hooks)])


def _limit(threads: int) -> Any:
    before = _libraries().limit(limits=threads, user_api="blas")
    _release()
    return before


def _release() -> None:
    """Let other threads set the number too: threadpoolctl 3.8 gives that right to the first that does, until its block ends."""
    with _libraries().limit(limits=None):
        pass


@contextmanager
def overlooked(name: str, kind: type[BaseException]) -> Iterator[None]:
    """Keep silent about errors of this kind in threads of this name; blocks may overlap in threads.

    Python has one hook for the errors of all threads. The first block puts ours in its place and the last one takes it
    away, unless somebody else has set another in between.

    >>> with overlooked("ExecutorManagerThread", KeyError):
    ...     pass
    """
    with _hooks.lock:
        if not _hooks.open:
            _hooks.before, threading.excepthook = threading.excepthook, _report
        _hooks.open.append((name, kind))
    try:
        yield
    finally:
        with _hooks.lock:
            _hooks.open.remove((name, kind))
            if not _hooks.open and threading.excepthook is _report:
                threading.excepthook = _hooks.before


class _Hooks:
    """What is overlooked at the moment, and the hook that was there before."""

    def __init__(self) -> None:
        self.lock, self.open, self.before = Lock(), [], threading.excepthook


_hooks = _Hooks()


def _report(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread is not None else ""
    if (name, failure.exc_type) not in _hooks.open:
        _hooks.before(failure)


@cache
def _libraries() -> ThreadpoolController:
    """The libraries to limit, looked up once: a look takes a millisecond."""
    import scipy.linalg  # noqa: F401  (has a BLAS of its own, which must be there to be found)

    return ThreadpoolController()


def in_order(function: Callable[[Item], Value], items: Iterable[Item]) -> Iterator[Value]:
    """`function` of each item, in order; as many at a time as there are cores, so few are alive at once.

    The caller's thread takes one of each group itself, and what it set for its context (as `np.errstate`) holds for all.
    Inside `function` a further `in_order` takes its items one after another.

    >>> list(in_order(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    threads = 1 if inside_worker() or _busy.get() else own_threads()
    if threads == 1:
        yield from map(function, items)
        return
    remaining = iter(items)
    while group := list(islice(remaining, threads)):
        tasks = [partial(_marked, function, item) for item in group]
        first, *rest = [partial(copy_context().run, task) for task in tasks]
        others = [_pool(threads, os.getpid()).submit(task) for task in rest]
        try:
            yield first()
            for other in others:
                yield other.result()
        finally:
            wait(others)  # whatever happened, no thread may still read what the caller is about to change


_busy = ContextVar("busy", default=False)


def _marked(function: Callable[[Item], Value], item: Item) -> Value:
    """`function` of one item of a group, where a further `in_order` must not wait for the pool."""
    _busy.set(True)
    return function(item)


@cache
def _pool(threads: int, _process: int) -> ThreadPoolExecutor:
    """Threads that stay: starting them anew took longer than the small products they are for. A fork has none, and its own pool."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="attnlearn")
