"""An oracle in another process: frames over its standard input and output, without a shell.

The program writes a hello frame when it is ready, then answers each query frame with an answer or an error
frame, and ends when its input ends (see `attnlearn.oracle._frames` for the format and
`attnlearn.oracle.serve_process` for an example). Its standard error goes where ours goes. Every wait is
bounded: a program that is silent for `timeout` seconds is killed, and the next try starts it again.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
import weakref
from collections.abc import Sequence

import numpy as np

from attnlearn._errors import OracleError, require
from attnlearn._types import Outputs, Tokens
from attnlearn.oracle import _frames
from attnlearn.oracle._calibration import MAX_BODY_BYTES, REMOTE_TIMEOUT_SECONDS
from attnlearn.oracle._patience import Transient
from attnlearn.oracle._source import through

_PIECE = 1 << 20


class ProcessSource:
    """The program `command` (a list, never a shell line) as an oracle; wrap it in `Oracle`.

    >>> import sys, tempfile
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
        require(timeout > 0, "timeout", "must be positive", timeout)
        self._command = words
        self._process: subprocess.Popen[bytes] | None = None
        self._kill = lambda: None
        self._hello: tuple[int, int, np.dtype] | None = None
        self.timeout = timeout
        self.max_bytes = max_bytes
        # Arguments may hold what is nobody's business: only the program's name is ever shown.
        self.label = name or f"process {os.path.basename(words[0])}"
        self.identity = f"process:{name or words}"

    def open(self) -> None:
        """Wait for the hello."""
        self._introduced()

    def limit_time(self, seconds: float) -> bool:
        """Bound every call by `seconds`."""
        self.timeout = seconds
        return True

    @property
    def dim(self) -> int:
        """Token dimension, as the program says."""
        return self._introduced()[0]

    @property
    def out_dim(self) -> int:
        """Output dimension, as the program says."""
        return self._introduced()[1]

    def accepted(self, x: Tokens) -> Tokens:
        """Tokens as the program's dtype holds them."""
        return through(x, self._introduced()[2])

    def ask(self, x: Tokens) -> Outputs:
        """Send one query and wait for its answer."""
        self._introduced()
        process = self._started()
        deadline = time.monotonic() + self.timeout
        try:
            _send(process, _frames.pack({"kind": "query"}, x), deadline)
            return _frames.answer_of(
                _frames.read(lambda size: _receive(process, size, deadline), self.max_bytes)
            )
        except BaseException as error:
            # After anything but an orderly error frame nobody knows where in the stream we are.
            if not (isinstance(error, OracleError) and str(error).startswith("the oracle says")):
                self.close()
            raise

    def _introduced(self) -> tuple[int, int, np.dtype]:
        if self._hello is None:
            self._started()
        assert self._hello is not None
        return self._hello

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise OracleError(f"cannot start {self.label} ({error.strerror})") from error
        self._process, self._kill = process, weakref.finalize(self, _end, process)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._greet(process)
        return process

    def _greet(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.timeout
        try:
            header, _ = _frames.read(lambda size: _receive(process, size, deadline), max_body=0)
            hello = _frames.hello_of(header)
        except BaseException:
            self.close()
            raise
        if self._hello not in (None, hello):
            self.close()
            raise OracleError(f"{self.label} came back as another oracle")
        self._hello = hello

    def close(self) -> None:
        """End the program; asking again starts a new one."""
        self._process = None
        self._kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    if process.poll() is None:
        process.kill()
    process.wait()


def _wait(process: subprocess.Popen[bytes], reading: bool, deadline: float) -> int:
    pipe = process.stdout if reading else process.stdin
    assert pipe is not None
    handle = pipe.fileno()
    remaining = max(0.0, deadline - time.monotonic())
    ready = select.select([handle] if reading else [], [] if reading else [handle], [], remaining)
    if not (ready[0] or ready[1]):
        raise Transient("no answer in time")
    return handle


def _send(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
    view = memoryview(data)
    while view:
        handle = _wait(process, reading=False, deadline=deadline)
        try:
            view = view[os.write(handle, view[:_PIECE]) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            raise Transient(f"the process ended {_how(process)}") from None


def _receive(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    pieces, missing = [], size
    while missing:
        handle = _wait(process, reading=True, deadline=deadline)
        piece = os.read(handle, min(missing, _PIECE))
        if not piece:
            raise Transient(f"the process ended {_how(process)}")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _how(process: subprocess.Popen[bytes]) -> str:
    try:
        return f"with exit code {process.wait(timeout=1.0)}"
    except subprocess.TimeoutExpired:
        return "its output"
