"""An oracle behind HTTP: frames as bodies of POST, verified TLS, bounded size and time.

`GET address` returns the hello as JSON, `POST address` takes a query frame and returns an answer or an error
frame (see `attnlearn.oracle._frames`; `attnlearn.oracle.serve_http` is an example). A secret is read from an
environment variable at each call and sent as a bearer token; it is never stored, so it cannot reach a cache,
a result or a `repr`, and it is refused over plain HTTP to other machines. Redirects are not followed, proxies
not used. Busy (429, 5xx) and unreachable servers are tried again; other refusals are final.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
from urllib.parse import urlsplit

import numpy as np

from attnlearn._errors import OracleError, require
from attnlearn._types import Outputs, Tokens
from attnlearn.oracle import _frames
from attnlearn.oracle._calibration import MAX_BODY_BYTES, MAX_HEADER_BYTES, REMOTE_TIMEOUT_SECONDS
from attnlearn.oracle._patience import Transient, within
from attnlearn.oracle._source import through

_OVERHEAD = MAX_HEADER_BYTES + 64
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class HttpSource:
    """The server at `address` as an oracle; wrap it in `Oracle`.

    `secret_variable` names the environment variable that holds the token, if the server wants one.

    >>> HttpSource("https://example.org/attention", secret_variable="MY_TOKEN")
    HttpSource(https://example.org/attention)
    >>> HttpSource("https://me:password@example.org/")
    Traceback (most recent call last):
    ValueError: address: must not hold a user or password (use secret_variable), got one for example.org
    """

    def __init__(
        self,
        address: str,
        *,
        secret_variable: str | None = None,
        timeout: float = REMOTE_TIMEOUT_SECONDS,
        max_bytes: int = MAX_BODY_BYTES,
        context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(address)
        host = parts.hostname
        if parts.username is not None or parts.password is not None:
            rule = "must not hold a user or password (use secret_variable)"
            raise ValueError(f"address: {rule}, got one for {host}")
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ValueError(
                f"address: must be http(s)://host[:port]/path without query, got {parts.scheme}://..."
            )
        require(timeout > 0, "timeout", "must be positive", timeout)
        plain = parts.scheme == "http"
        unsafe = plain and secret_variable is not None and host not in _LOOPBACK
        require(not unsafe, "address", "must be https where a secret is sent", f"{parts.scheme}://{host}")
        self._host, self._port, self._path = host, parts.port, parts.path or "/"
        self._tls = None if plain else context or ssl.create_default_context()
        self._secret_variable = secret_variable
        self._hello: tuple[int, int, np.dtype] | None = None
        self.timeout = timeout
        self.max_bytes = max_bytes
        self.label = f"{parts.scheme}://{parts.netloc}{self._path}"
        self.identity = f"http:{self.label}"

    def __repr__(self) -> str:
        return f"HttpSource({self.label})"

    def open(self) -> None:
        """Wait for the hello."""
        self._introduced()

    def limit_time(self, seconds: float) -> bool:
        """Bound every call by `seconds`."""
        self.timeout = seconds
        return True

    @property
    def dim(self) -> int:
        """Token dimension, as the server says."""
        return self._introduced()[0]

    @property
    def out_dim(self) -> int:
        """Output dimension, as the server says."""
        return self._introduced()[1]

    def accepted(self, x: Tokens) -> Tokens:
        """Tokens as the server's dtype holds them."""
        return through(x, self._introduced()[2])

    def ask(self, x: Tokens) -> Outputs:
        """Post one query and wait for its answer."""
        self._introduced()
        data = self._request("POST", _frames.pack({"kind": "query"}, x), self.max_bytes + _OVERHEAD)
        return _frames.answer_of(_frames.unpack(data, self.max_bytes))

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _introduced(self) -> tuple[int, int, np.dtype]:
        if self._hello is None:
            data = self._request("GET", None, MAX_HEADER_BYTES)
            try:
                header = json.loads(data)
            except ValueError as error:
                raise OracleError(f"{self.label} does not greet with JSON") from error
            if not isinstance(header, dict):
                raise OracleError(f"{self.label} does not greet with a JSON object")
            self._hello = _frames.hello_of(header)
        return self._hello

    def _request(self, method: str, body: bytes | None, limit: int) -> bytes:
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self.timeout)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self.timeout, context=self._tls
            )
        headers = {"Content-Type": "application/octet-stream", **self._authorization()}
        sockets: list[socket.socket] = []

        def exchange() -> bytes:
            connection.connect()
            sockets.append(connection.sock)
            connection.request(method, self._path, body=body, headers=headers)
            with connection.getresponse() as response:
                return self._body(response, limit)

        try:
            # A socket's timeout restarts with every byte; the thread bounds the whole call.
            return within(self.timeout, exchange)
        except ssl.SSLCertVerificationError as error:
            raise OracleError(f"{self.label} has no valid certificate ({error.verify_message})") from None
        except (http.client.HTTPException, OSError) as error:
            raise Transient(f"{self.label} cannot be reached ({type(error).__name__})") from None
        finally:
            for open_socket in sockets:
                with contextlib.suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that still reads
            connection.close()

    def _authorization(self) -> dict[str, str]:
        if self._secret_variable is None:
            return {}
        secret = os.environ.get(self._secret_variable)
        if not secret:
            raise OracleError(f"the environment variable {self._secret_variable} with the secret is not set")
        if not (secret.isascii() and secret.isprintable()):
            raise OracleError(f"the secret in {self._secret_variable} is not printable ASCII")
        return {"Authorization": f"Bearer {secret}"}

    def _body(self, response: http.client.HTTPResponse, limit: int) -> bytes:
        if response.status == 429 or response.status >= 500:
            raise Transient(f"{self.label} answers with status {response.status}")
        if response.status != 200:
            raise OracleError(f"{self.label} refuses with status {response.status}")
        # The length is what the server claims; without one the reading itself is bounded.
        data = b"" if (response.length or 0) > limit else response.read(limit + 1)
        if (response.length or 0) > limit or len(data) > limit:
            raise OracleError(f"{self.label} answers with more than {limit} bytes")
        return data
