"""Bounded time and retries with exponential backoff.

Only failures that another try may cure are retried: those raised as `Transient` or as an `OSError` (refused
connections, timeouts). A function of this process that exceeds its time cannot be stopped, only left: its
thread goes on in the background and its answer is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from attnlearn._errors import AttnlearnError, OracleError
from attnlearn.oracle._calibration import BACKOFF_CAP_SECONDS, BACKOFF_SECONDS


class Transient(OracleError):
    """A failure that another try may cure."""


def patiently(function: Callable[[], Any], retries: int, retried: Callable[[], None]) -> Any:
    """`function()`, tried again up to `retries` times; whatever it raises in the end is an `OracleError`.

    >>> patiently(lambda: 3, retries=0, retried=lambda: None)
    3
    """
    for attempt in range(retries + 1):
        try:
            return function()
        except (Transient, OSError) as error:
            if attempt == retries:
                tries = f"after {retries + 1} tries" if retries else "at once"
                raise OracleError(f"the oracle failed {tries}: {_reason(error)}") from error
            retried()
            time.sleep(min(BACKOFF_SECONDS * 2**attempt, BACKOFF_CAP_SECONDS))
        except AttnlearnError:
            raise
        except Exception as error:
            raise OracleError(f"the oracle failed: {_reason(error)}") from error
    raise AssertionError("unreachable")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OracleError) else f"{type(error).__name__}: {text}"[:300]


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """`function()` in a thread of its own, given up as `Transient` after `seconds`.

    >>> within(5.0, lambda: 3)
    3
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = function()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True, name="attnlearn-oracle")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Transient(f"no answer within {seconds:g} s")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
