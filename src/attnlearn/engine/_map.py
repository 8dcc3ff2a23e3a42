"""One ordered map over joblib: in this process, in local processes, or on an existing Dask cluster.

The work is cut into fixed blocks (`blocks`) and the results are combined in block order, so the number of
workers decides only who computes a block, never what is computed: 1 and 2 local workers give the same
bytes. For that every worker uses as many BLAS and XLA threads as the calling process, unless told otherwise
(`"8x4"`: 8 workers of 4 threads, for machines with many cores; the bytes then depend on the 4, not on the 8).
On a cluster of other machines the last bits may differ, as other processors round other sums.

The mapped function must be picklable by cloudpickle, must not change its argument, and must enter its own
`precision` context: a context of the caller does not travel to another process.

Dask workers and clients exchange pickles, so whoever can reach the scheduler can run code on every machine
of the cluster, this one included. Use clusters on networks you trust, or Dask's own TLS.

Cost: one pickle of each item and result per block; the first block of a worker imports and compiles anew.
What can fail: a local worker that is killed (`EngineError`). A Dask cluster runs the blocks of a lost worker
again; it fails only when no worker is left, or when one block has killed several.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any, TypeVar

from attnlearn._errors import AttnlearnError, describe, require
from attnlearn.engine import _threads
from attnlearn.engine._calibration import DASK_CONNECT_SECONDS
from attnlearn.engine._progress import Progress

Item = TypeVar("Item")
Value = TypeVar("Value")


class EngineError(AttnlearnError):
    """The workers failed, not the work: a process was killed, or the cluster cannot be reached.

    >>> issubclass(EngineError, AttnlearnError)
    True
    """


def blocks(total: int, size: int) -> list[slice]:
    """Cut `range(total)` into slices of `size`; the last may be shorter.

    >>> blocks(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    require(total >= 0, "total", "must not be negative", total)
    require(size >= 1, "size", "must be at least 1", size)
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


@dataclass(frozen=True)
class Engine:
    """Where blocks of work are computed: `workers` local processes, or the Dask cluster at `address`.

    `threads` is the number of BLAS and XLA threads of each worker; None means as many as this process has.

    >>> engine = Engine.parse(None)
    >>> engine.map(abs, [-1, 2, -3])
    [1, 2, 3]
    >>> engine.reduce(abs, [-1, 2, -3], lambda total, value: total + value)
    6
    """

    workers: int = 1
    address: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        require(self.workers >= 1, "engine", "needs at least 1 worker", self.workers)
        require(self.threads is None or self.threads >= 1, "engine", "needs at least 1 thread", self.threads)
        changed = self.threads not in (None, _threads.own_threads())
        if self._in_process and changed and not _threads.inside_worker():
            rule = f"one worker is this process, whose {_threads.own_threads()} threads cannot be changed"
            require(False, "engine", f"{rule} (set {_threads.XLA_VARIABLE} before it starts)", self.threads)

    @classmethod
    def parse(cls, spec: Engine | str | int | None) -> Engine:
        """Read `None`, a number of workers, `"4"`, `"8x4"` (workers x threads) or `"dask:ADDRESS"`.

        >>> Engine.parse("8x4")
        Engine(workers=8, address=None, threads=4)
        >>> Engine.parse("dask:tcp://127.0.0.1:8786").address
        'tcp://127.0.0.1:8786'
        >>> Engine.parse("many")
        Traceback (most recent call last):
        ValueError: engine: must be a number of workers, WORKERSxTHREADS or dask:ADDRESS, got 'many'
        """
        if isinstance(spec, Engine):
            return spec
        if spec is None:
            return cls()
        if isinstance(spec, int) and not isinstance(spec, bool):
            return cls(workers=spec)
        text = spec if isinstance(spec, str) else ""
        if text.startswith("dask:") and text != "dask:":
            return cls(address=text.removeprefix("dask:"))
        match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
        if match is None:
            rule = "must be a number of workers, WORKERSxTHREADS or dask:ADDRESS"
            raise ValueError(f"engine: {rule}, got {describe(spec)}")
        return cls(workers=int(match[1]), threads=int(match[2]) if match[2] else None)

    @property
    def _in_process(self) -> bool:
        return self.address is None and self.workers == 1

    @property
    def in_process(self) -> bool:
        """Whether the work stays in this process, so that nothing needs to be packed for another.

        >>> Engine().in_process, Engine(workers=2).in_process
        (True, False)
        """
        return self._in_process or _threads.inside_worker()

    def map(
        self, function: Callable[[Item], Value], items: Iterable[Item], *, progress: Progress | None = None
    ) -> list[Value]:
        """`[function(item) for item in items]`, computed by the workers; results in the order of the items.

        >>> Engine().map(len, ["a", "bc"])
        [1, 2]
        """
        with closing(self.stream(function, items, progress=progress)) as values:
            return list(values)

    def reduce(
        self,
        function: Callable[[Item], Value],
        items: Iterable[Item],
        combine: Callable[[Any, Value], Any],
        *,
        progress: Progress | None = None,
    ) -> Any:
        """Fold the results from the left in the order of the items, holding only a few at a time.

        >>> Engine().reduce(str, [1, 2, 3], lambda a, b: a + b)
        '123'
        """
        with closing(self.stream(function, items, progress=progress)) as values:
            try:
                total = next(values)
            except StopIteration:
                raise ValueError("items: must not be empty, got none to reduce") from None
            for value in values:
                total = combine(total, value)
        return total

    def stream(
        self, function: Callable[[Item], Value], items: Iterable[Item], *, progress: Progress | None = None
    ) -> Generator[Value, None, None]:
        """As `map`, one result after the other, as soon as all before it are known.

        >>> list(Engine().stream(abs, [-1]))
        [1]
        """
        blas = self.threads or _threads.own_blas_threads()
        if self._in_process or _threads.inside_worker():
            values = (_call((function, item, blas)) for item in items)
        else:
            tasks = ((function, item, blas) for item in items)
            xla = self.threads or _threads.own_threads()
            values = (
                _local(tasks, self.workers, xla) if self.address is None else _dask(tasks, self.address, xla)
            )
        with closing(values):
            for value in values:
                yield value
                if progress is not None:
                    progress.update()


def _call(task: tuple[Callable, Any, int]) -> Any:
    function, item, blas = task
    with _threads.limited_blas(blas):
        return function(item)


def _call_on_cluster(task: tuple[Callable, Any, int], threads: int) -> Any:
    # Dask starts its own workers: the first task tells XLA, which has not started by then.
    _threads.announce_threads(threads)
    return _call(task)


def _local(tasks: Iterable[tuple], workers: int, threads: int) -> Generator:
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import BrokenProcessPool

    settings = {"initializer": _threads.start_worker, "initargs": (threads,)}
    with parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=threads, **settings):
        parallel = Parallel(return_as="generator")
    try:
        yield from _results(parallel, (delayed(_call)(task) for task in tasks))
    except BrokenProcessPool as error:
        raise EngineError(f"a worker process died, often for want of memory ({error})") from error


def _dask(tasks: Iterable[tuple], address: str, threads: int) -> Generator:
    from joblib import Parallel, delayed, parallel_config

    with _connect(address) as client:
        with parallel_config(backend="dask", client=client):
            parallel = Parallel(return_as="generator")
        # A task is one tuple: joblib would scatter a large array onto one worker, whose loss would lose it.
        yield from _results(parallel, (delayed(_call_on_cluster)(task, threads) for task in tasks))


def _results(parallel: Any, calls: Iterable) -> Generator:
    results = parallel(calls)
    try:
        for value in results:  # noqa: UP028 - `yield from` would close the results before the filter is set
            yield value
    finally:
        with warnings.catch_warnings(), _without_dying_words():
            warnings.simplefilter("ignore")  # that results nobody reads are lost is what closing means
            results.close()


def _without_dying_words() -> AbstractContextManager[None]:
    """Keep silent about loky's manager when it is told to stop between taking a task in and handing it on.

    Loky forgets the tasks that wait and then looks for one more of them: its manager, a thread that was
    about to end, ends with a KeyError instead. The workers are gone by then and nobody awaits the tasks.
    """
    return _threads.overlooked("ExecutorManagerThread", KeyError)


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise EngineError("a Dask engine needs the extra: pip install 'attnlearn[dask]'") from error
    try:
        return Client(address, timeout=DASK_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise EngineError(f"no Dask scheduler answers at {address} ({type(error).__name__})") from error
