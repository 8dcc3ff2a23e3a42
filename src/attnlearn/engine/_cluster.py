"""A running Dask cluster for the map: futures in order, and an end in bounded time when the cluster is gone.

The scheduler gives the blocks of a lost worker to the others. A future of a cluster without workers would wait
without end, so the workers are counted while one waits.

Cost: one message a block and one a second while waiting. What can fail: `EngineError`, with its cause, when no
scheduler answers, no worker is there for half a minute, the scheduler goes away or falls silent, or one block
has killed several workers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from attnlearn.engine._calibration import (
    DASK_BLOCKS_PER_THREAD,
    DASK_CONNECT_SECONDS,
    DASK_LOOK_SECONDS,
    DASK_NO_WORKER_SECONDS,
)
from attnlearn.engine._failure import EngineError


def cluster(call: Callable, tasks: Iterable, address: str) -> Generator:
    """`call(task)` for each task, computed by the cluster at `address`; in order."""
    with connected(address) as client:
        there = Cluster(client, address)
        there.look()
        remaining, pending, more = iter(tasks), deque(), True
        while True:
            while more and sum(not future.done() for future in pending) < there.room:
                task = next(remaining, remaining)
                more = task is not remaining
                if more:
                    pending.append(there.submit(_unpacked, call, [task]))
            if not pending:
                return
            if pending[0].done():
                yield there.value(pending.popleft())
            else:
                there.wait(pending)


class Cluster:
    """A client of a running cluster that notices when workers or scheduler are gone."""

    def __init__(self, client: Any, address: str) -> None:
        self._client, self._address = client, address
        self._workers: dict[str, int] = {}
        self._seen, self._looked = time.monotonic(), -DASK_LOOK_SECONDS

    @property
    def room(self) -> int:
        """Blocks that may be on their way at once."""
        return DASK_BLOCKS_PER_THREAD * max(1, len(self.threads()))

    def threads(self) -> list[str]:
        """The address of every worker, once for each of its threads, as they were at the last look."""
        return [address for address, number in sorted(self._workers.items()) for _ in range(number)]

    def submit(self, call: Callable, *arguments: Any, workers: list[str] | None = None) -> Any:
        """The future of a call, by any worker or by one of these alone."""
        import dask.config

        quiet = {"distributed.admin.large-graph-warning-threshold": "1PB"}
        with self._or_lost(), dask.config.set(quiet):
            return self._client.submit(call, *arguments, pure=False, workers=workers)

    def wait(self, futures: Iterable) -> None:
        """Until one more future is done, or it is time to look after the cluster."""
        from distributed import wait

        with self._or_lost(), suppress(TimeoutError), self._client.as_current():
            unfinished = [future for future in futures if not future.done()]
            wait(unfinished, timeout=DASK_LOOK_SECONDS, return_when="FIRST_COMPLETED")
        if time.monotonic() - self._looked >= DASK_LOOK_SECONDS:
            self.look()

    def look(self) -> None:
        """Count the threads of the workers; none for too long is the end."""
        while True:
            with self._or_lost():
                found = self._client.sync(
                    self._client.scheduler.ncores, callback_timeout=DASK_CONNECT_SECONDS
                )
            self._workers, self._looked = dict(found), time.monotonic()
            if any(found.values()):
                self._seen = self._looked
                return
            if self._looked - self._seen > DASK_NO_WORKER_SECONDS:
                raise EngineError(
                    f"the Dask cluster at {self._address} has had no worker for {DASK_NO_WORKER_SECONDS:g} s"
                )
            time.sleep(min(DASK_LOOK_SECONDS, DASK_NO_WORKER_SECONDS))

    def value(self, future: Any, after_look: Callable[[Cluster], None] | None = None) -> Any:
        """The value of a future that is done; what the work raised is raised.

        Its worker may be lost meanwhile. Then somebody computes it again, unless `after_look` raises.
        """
        from distributed.scheduler import KilledWorker

        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                raise EngineError("one block has killed several workers, often for want of memory") from error
            raise error
        patience = DASK_LOOK_SECONDS
        while True:
            with self._or_lost(), suppress(TimeoutError), self._client.as_current():
                return future.result(timeout=patience)
            self.look()
            if after_look is not None:
                after_look(self)
            patience *= 2

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        from concurrent.futures import CancelledError

        try:
            yield
        except Exception as error:
            if isinstance(error, CancelledError | OSError) or self._client.status != "running":
                raise self._lost(error) from error
            raise

    def _lost(self, error: BaseException) -> EngineError:
        return EngineError(
            f"the Dask scheduler at {self._address} went away or fell silent ({type(error).__name__})"
        )


def _unpacked(call: Callable, boxed: list) -> Any:
    """One block, in a list: Dask would look into a tuple for its own futures."""
    return call(boxed[0])


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the scheduler at `address`."""
    try:
        from distributed import Client
    except ImportError as error:
        raise EngineError("a Dask engine needs the extra: pip install 'attnlearn[dask]'") from error
    with _silent():
        try:
            client = Client(address, timeout=DASK_CONNECT_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineError(f"no Dask scheduler answers at {address} ({type(error).__name__})") from error
        try:
            yield client
        finally:
            with suppress(Exception):  # of a client whose scheduler is gone nothing is left to release
                client.close(timeout=DASK_LOOK_SECONDS)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep Dask's log to itself: what it says of a lost scheduler is said by the error."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
