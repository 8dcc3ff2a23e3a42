"""Ctrl-C that nobody loses.

Python drops an exception that is raised inside a destructor, and C code may put another in its place: runs were seen to go
on as if nobody had pressed anything, or to end with a TypeError of NumPy. Inside `noticed_interrupts` the signal is also
remembered. The caller's handler is back afterwards, and one that the caller wrote is never touched.

Modules in C++ that are interrupted while they are imported may end the process: jaxlib defines its classes by running Python, where
the exception of a handler finds nobody who catches it (a segmentation fault or an abort, 2 of 120 runs interrupted within
their first second). Inside `deferred_interrupts` the signal waits until the block ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Noticing:
    """A handler that remembers the signal and then does what the one before it does."""

    def __init__(self, before: Any) -> None:
        self.before, self.came = before, False

    def __call__(self, number: int, frame: Any) -> None:
        self.came = True
        self.before(number, frame)

    def heard(self) -> bool:
        """Whether the signal came inside this block or inside one around it."""
        return self.came or (isinstance(self.before, _Noticing) and self.before.heard())


@contextmanager
def noticed_interrupts() -> Iterator[Callable[[], None]]:
    """A function that raises `KeyboardInterrupt` if Ctrl-C came inside the block, or one around it, and was dropped.

    Whatever other exception leaves the block after Ctrl-C becomes a `KeyboardInterrupt`. Outside the main thread, where
    Ctrl-C never arrives, nothing happens.

    >>> with noticed_interrupts() as check:
    ...     check()
    """
    before = signal.getsignal(signal.SIGINT)
    handler = _Noticing(before)
    main = threading.current_thread() is threading.main_thread()
    if not main or not (before is signal.default_int_handler or isinstance(before, _Noticing)):
        yield lambda: None
        return

    def check() -> None:
        if handler.heard():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    try:
        yield check
    except Exception as error:
        if handler.heard():
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Ctrl-C inside the block takes effect at its end, through the handler that was there before.

    Outside the main thread, and where no handler of Python's is set, nothing happens.

    >>> with deferred_interrupts():
    ...     import jax
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    pressed: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            before(*pressed[0])
