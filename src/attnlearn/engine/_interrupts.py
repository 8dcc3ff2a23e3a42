"""Ctrl-C that nobody loses.

Python drops an exception that is raised inside a destructor or a callback of C code, and a `KeyboardInterrupt` with it: a
run was seen to go on as if nobody had pressed anything. Inside the block the signal is also remembered, and asked for
between phases. The caller's handler is back afterwards, and one that the caller wrote is never touched.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noticed_interrupts() -> Iterator[Callable[[], None]]:
    """A function that raises `KeyboardInterrupt` if Ctrl-C came inside the block and was dropped on its way.

    >>> with noticed_interrupts() as check:
    ...     check()
    """
    came: list[int] = []

    def check() -> None:
        if came:
            came.clear()
            raise KeyboardInterrupt

    def handler(number: int, frame: Any) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
