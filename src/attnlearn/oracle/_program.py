"""A program and everything it starts, ended together: by its oracle, or because our process is gone.

The program leads a session of its own, so that one signal reaches all its descendants (but those that leave the session
on purpose). Beside it a guard, a shell that does nothing but wait, holds a pipe of ours: when our process ends, however
it ends, the guard reads the end of the pipe and kills the session. The guard is one system shell of a megabyte.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from attnlearn._errors import OracleError
from attnlearn.oracle._calibration import END_SECONDS

_GUARD = 'read -r group || exit; read -r end; kill -s KILL -- "-$group" 2>/dev/null'


class Program:
    """`command`, started without a shell, with its standard input and output as pipes.

    >>> program = Program(["cat"])
    >>> program.process.poll() is None
    True
    >>> program.end()
    >>> program.process.poll()
    -9
    """

    def __init__(self, command: Sequence[str]) -> None:
        if os.name != "posix":
            raise OracleError(
                "a program as oracle needs a POSIX system: its session is how its descendants are ended"
            )
        # Before the program, so that it is never without a guard; told of it as soon as it has a number.
        self._guard = _start(["/bin/sh", "-c", _GUARD], subprocess.DEVNULL)
        try:
            self.process = _start(list(command), subprocess.PIPE)
        except BaseException:
            _end(self._guard)
            raise
        assert self._guard.stdin is not None
        with suppress(OSError):
            self._guard.stdin.write(b"%d\n" % self.process.pid)

    def end(self) -> None:
        """Kill the program and its descendants; more than once does no harm."""
        if self.process.stdin is not None and self.process.stdin.closed:
            return
        _end(self.process)
        _end(self._guard)

    def how_it_ended(self) -> str:
        """The end of the sentence "the process ended ...", for a program that has closed a pipe."""
        try:
            code = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "its output"
        if code >= 0:
            return f"with exit code {code}"
        return f"by signal {-code}"


def _start(command: list[str], output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=output, start_new_session=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):  # all gone already, or run by another user
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=END_SECONDS)
