"""What sources in another process share: a hello that says what they compute, numbered queries, a limit of time and of size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import count

from attnlearn._types import Tokens
from attnlearn.oracle import _frames
from attnlearn.oracle._patience import require_timeout
from attnlearn.oracle._source import through


class RemoteSource(ABC):
    """A source whose sizes and dtype are known once it has said hello."""

    def __init__(self, timeout: float, max_bytes: int) -> None:
        require_timeout(timeout)
        self.timeout = timeout
        self.max_bytes = max_bytes
        self._hello: _frames.Hello | None = None
        self._numbers = count(1)

    @abstractmethod
    def _introduced(self) -> _frames.Hello:
        """The hello, waited for if it has not come."""

    def open(self) -> None:
        """Wait for the hello."""
        self._introduced()

    def limit_time(self, seconds: float) -> bool:
        """Bound every call by `seconds`."""
        self.timeout = seconds
        return True

    @property
    def dim(self) -> int:
        """Token dimension, as the hello says."""
        return self._introduced().dim

    @property
    def out_dim(self) -> int:
        """Output dimension, as the hello says."""
        return self._introduced().out_dim

    def accepted(self, x: Tokens) -> Tokens:
        """Tokens as the other side's dtype holds them."""
        return through(x, self._introduced().dtype)
