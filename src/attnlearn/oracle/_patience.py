"""Bounded time and retries with exponential backoff.

Only failures that another try may cure are retried: those raised as `Transient` or as an `OSError` (refused
connections, timeouts). A server that says how long to wait is obeyed; such waits use up no retries, but their sum is
bounded. A function of this process that exceeds its time cannot be stopped, only left: its thread goes on in the
background and its answer is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from attnlearn._errors import AttnlearnError, OracleError, require
from attnlearn.oracle._calibration import BACKOFF_CAP_SECONDS, BACKOFF_SECONDS
from attnlearn.oracle._words import plain


class Transient(OracleError):
    """A failure that another try may cure; after `wait` seconds, if the oracle says so and these are granted.

    `patience` is the sum of such waits that one call grants.
    """

    def __init__(self, message: str, wait: float | None = None, patience: float = 0.0) -> None:
        super().__init__(message)
        self.wait, self.patience = wait, patience


def require_timeout(timeout: float | None) -> None:
    """Refuse a timeout that is no time to wait.

    >>> require_timeout(float("nan"))
    Traceback (most recent call last):
    ValueError: timeout: must be a positive number of seconds, got nan
    """
    good = timeout is None or 0 < timeout <= threading.TIMEOUT_MAX
    require(good, "timeout", "must be a positive number of seconds", timeout)


def patiently(
    function: Callable[[], Any],
    retries: int,
    retried: Callable[[], None],
    clean: Callable[[str], str] = plain,
) -> Any:
    """`function()`, tried again up to `retries` times; whatever it raises in the end is an `OracleError`.

    `clean` makes the words of the oracle fit to be shown.

    >>> patiently(lambda: 3, retries=0, retried=lambda: None)
    3
    """
    patience = _Patience(retries)
    while True:
        try:
            return function()
        except (Transient, OSError) as error:
            pause = patience.pause(error)
            if pause is None:
                how = f"after {patience.tries} tries" if patience.tries > 1 else "at once"
                raise OracleError(clean(f"the oracle failed {how}: {_reason(error)}")) from _shown(
                    error, clean
                )
        except OracleError as error:
            if clean(str(error)) == str(error):
                raise
            raise type(error)(clean(str(error))) from None
        except AttnlearnError:
            raise
        except Exception as error:
            raise OracleError(clean(f"the oracle failed: {_reason(error)}")) from _shown(error, clean)
        retried()
        time.sleep(pause)


class _Patience:
    """What is left of the retries and of the time that an oracle may ask for."""

    def __init__(self, retries: int) -> None:
        self._retries, self._waited, self._failures, self.tries = retries, 0.0, 0, 0

    def pause(self, error: Exception) -> float | None:
        """Seconds to wait before the next try; None if there is none."""
        self.tries += 1
        pause = min(BACKOFF_SECONDS * 2 ** min(self.tries - 1, 32), BACKOFF_CAP_SECONDS)
        if isinstance(error, Transient) and error.wait is not None:
            pause = max(pause, error.wait)
            self._waited += pause
            return pause if self._retries and self._waited <= error.patience else None
        self._failures += 1
        return pause if self._failures <= self._retries else None


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, OracleError) else f"{type(error).__name__}: {error}"


def _shown(error: Exception, clean: Callable[[str], str]) -> Exception | None:
    """The error as the cause of another, unless a traceback would show what must not be seen."""
    return error if clean(str(error)) == " ".join(str(error).split()) else None


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
