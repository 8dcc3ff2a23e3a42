"""An oracle in another process: frames over its standard input and output, without a shell.

The program writes a hello frame when it is ready, then answers each query frame with an answer or an error
frame, and ends when its input ends (see `attnlearn.oracle._frames` for the format and
`attnlearn.oracle.serve_process` for an example). Its standard error goes where ours goes. Every wait is
bounded: a program that is silent for `timeout` seconds is killed with all that it started, and the next try starts it
again; so is one that speaks without being asked. Its arguments are shown nowhere, as they may hold secrets.
"""

from __future__ import annotations

import hashlib
import os
import select
import time
import weakref
from collections.abc import Sequence

from attnlearn._errors import OracleError, require
from attnlearn._types import Outputs, Tokens
from attnlearn.oracle import _frames
from attnlearn.oracle._calibration import MAX_BODY_BYTES, REMOTE_TIMEOUT_SECONDS, SHORTEST_SECRET
from attnlearn.oracle._patience import Transient
from attnlearn.oracle._program import Program
from attnlearn.oracle._remote import RemoteSource
from attnlearn.oracle._words import plain

_PIECE = 1 << 20
_LONGEST_POLL = 2e6  # seconds; the system counts milliseconds in 31 bits


class ProcessSource(RemoteSource):
    """The program `command` (a list, never a shell line) as an oracle; wrap it in `Oracle`.

    >>> import sys, tempfile
    >>> import numpy as np
    >>> from attnlearn import AttentionLayer
    >>> from attnlearn.oracle import Oracle
    >>> path = tempfile.mkdtemp() + "/layer.safetensors"
    >>> AttentionLayer.random(2, 4).save(path)
    >>> command = [sys.executable, "-m", "attnlearn.oracle.serve_process", path]
    >>> with Oracle.wrap(ProcessSource(command)) as oracle:
    ...     oracle(np.ones((1, 3, 4))).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: float = REMOTE_TIMEOUT_SECONDS,
        max_bytes: int = MAX_BODY_BYTES,
        name: str | None = None,
    ) -> None:
        words = [] if isinstance(command, str) else [os.fspath(word) for word in command]
        require(len(words) >= 1, "command", "must be a list of the program and its arguments", command)
        super().__init__(timeout, max_bytes)
        self._command = words
        self._program: Program | None = None
        self._kill = lambda: None
        # Arguments may hold what is nobody's business: only the program's name is ever shown.
        self.label = name or f"process {os.path.basename(words[0])}"
        self.identity = f"process:{name or hashlib.sha256(repr(words).encode()).hexdigest()}"

    def ask(self, x: Tokens) -> Outputs:
        """Send one query and wait for its answer."""
        numbered, number = self._introduced().numbered, next(self._numbers)
        stream = Stream(self._started(), self.timeout)
        try:
            stream.expect_silence()
            stream.send(_frames.pack({"kind": "query", "number": number}, x))
            return _frames.answer_of(
                _frames.read(stream.receive, self.max_bytes), number if numbered else None
            )
        except _frames.Refusal as refusal:
            raise _frames.Refusal(self._without_arguments(refusal)) from None
        except BaseException:
            # After anything but an orderly error frame nobody knows where in the stream we are.
            self.close()
            raise

    def _without_arguments(self, words: object) -> str:
        """What the program says, without its arguments, should it repeat them; names of options and files may stay."""
        values = [word.partition("=")[2] if word[0] == "-" else word for word in self._command[1:] if word]
        secrets = (value for value in values if len(value) >= SHORTEST_SECRET and not os.path.exists(value))
        return plain(str(words), secrets)

    def _introduced(self) -> _frames.Hello:
        if self._hello is None:
            self._started()
        assert self._hello is not None
        return self._hello

    def _started(self) -> Program:
        if self._program is not None and self._program.process.poll() is None:
            return self._program
        self.close()
        try:
            program = Program(self._command)
        except OSError as error:
            raise OracleError(f"cannot start {self.label} ({error.strerror})") from None
        except ValueError:  # a null byte
            raise OracleError(f"cannot start {self.label} (its words are no command)") from None
        self._program, self._kill = program, weakref.finalize(self, program.end)
        self._greet(program)
        return program

    def _greet(self, program: Program) -> None:
        try:
            header, _ = _frames.read(Stream(program, self.timeout).receive, max_body=0)
            hello = _frames.hello_of(header)
        except Transient:
            self.close()
            raise
        except OracleError as error:
            self.close()
            raise OracleError(self._without_arguments(error)) from None
        except BaseException:
            self.close()
            raise
        if self._hello not in (None, hello):
            self.close()
            raise OracleError(f"{self.label} came back as another oracle")
        self._hello = hello

    def close(self) -> None:
        """End the program and all that it started; asking again starts a new one."""
        self._program = None
        self._kill()


class Stream:
    """The pipes of a program for one exchange, which must be over after `seconds`."""

    def __init__(self, program: Program, seconds: float) -> None:
        self._program, self._seconds = program, seconds
        self._deadline = time.monotonic() + seconds
        into, out_of = program.process.stdin, program.process.stdout
        assert into is not None
        assert out_of is not None
        self._into, self._out_of = into.fileno(), out_of.fileno()
        for handle in (self._into, self._out_of):
            os.set_blocking(handle, False)

    def expect_silence(self) -> None:
        """Refuse to ask a program that has said something nobody asked for: it would be taken for the answer."""
        if _ready(self._out_of, select.POLLIN, 0.0) and self._read(1):
            raise Transient("the process said something without being asked")

    def send(self, data: bytes) -> None:
        """Write all of `data`."""
        view = memoryview(data)
        while view:
            self._wait(self._into, select.POLLOUT)
            try:
                view = view[os.write(self._into, view[:_PIECE]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._ended() from None

    def receive(self, size: int) -> bytes:
        """Exactly `size` bytes."""
        pieces, missing = [], size
        while missing:
            self._wait(self._out_of, select.POLLIN)
            pieces.append(self._read(min(missing, _PIECE)))
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def _read(self, size: int) -> bytes:
        piece = os.read(self._out_of, size)
        if not piece:
            raise self._ended()
        return piece

    def _wait(self, handle: int, event: int) -> None:
        if not _ready(handle, event, self._deadline - time.monotonic()):
            raise Transient(f"no answer within {self._seconds:g} s")

    def _ended(self) -> Transient:
        return Transient(f"the process ended {self._program.how_it_ended()}")


def _ready(handle: int, event: int, seconds: float) -> bool:
    waiting = select.poll()  # `select` cannot wait for a handle above 1024
    waiting.register(handle, event)
    return bool(waiting.poll(1000 * min(max(0.0, seconds), _LONGEST_POLL)))
