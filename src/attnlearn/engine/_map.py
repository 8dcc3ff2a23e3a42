"""One ordered map: in this process, in local processes (joblib), or on an existing Dask cluster.

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
What can fail: the blocks of a lost worker are computed again, by a new process or by the other workers of the
cluster. When one block has killed several workers, no worker is left or the scheduler is gone, that is an
`EngineError` with its cause, within a minute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from attnlearn._errors import describe, require
from attnlearn.engine import _threads
from attnlearn.engine._cluster import cluster
from attnlearn.engine._local import local
from attnlearn.engine._pieces import summed_by
from attnlearn.engine._progress import Progress
from attnlearn.engine._seats import Seats

Item = TypeVar("Item")
Value = TypeVar("Value")


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

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Inside the block, large sums over `Pieces` run on the workers of a cluster; otherwise on threads of this process.

        >>> with Engine().summing():
        ...     pass
        """
        if self.address is None or _threads.inside_worker():
            yield
            return
        with closing(Seats(self.address)) as seats, summed_by(seats):
            yield

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
                local(_call, tasks, self.workers, xla)
                if self.address is None
                else cluster(partial(_call_on_cluster, threads=xla), tasks, self.address)
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
