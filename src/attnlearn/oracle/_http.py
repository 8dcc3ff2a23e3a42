"""An oracle behind HTTP: frames as bodies of POST, verified TLS, bounded size and time.

`GET address` returns the hello as JSON, `POST address` takes a query frame and returns an answer or an error
frame (see `attnlearn.oracle._frames`; `attnlearn.oracle.serve_http` is an example). A secret is read from an
environment variable at each call and sent as a bearer token; it is never stored, so it cannot reach a cache,
a result or a `repr` (nor does it when the server sends it back), and it is refused over plain HTTP to other machines.
Redirects are not followed, proxies not used. Busy (408, 429, 5xx) and unreachable servers and answers that were cut
off are tried again; other refusals are final. `Retry-After` is obeyed, up to `timeout` seconds in all.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import os
import re
import socket
import ssl
import time
from urllib.parse import urlsplit

from attnlearn._errors import OracleError, require
from attnlearn._types import Outputs, Tokens
from attnlearn.oracle import _frames
from attnlearn.oracle._calibration import MAX_BODY_BYTES, MAX_HEADER_BYTES, REMOTE_TIMEOUT_SECONDS
from attnlearn.oracle._patience import Transient, within
from attnlearn.oracle._remote import RemoteSource

_OVERHEAD = MAX_HEADER_BYTES + 64
_BUSY = (408, 429)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class HttpSource(RemoteSource):
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
        super().__init__(timeout, max_bytes)
        plain = parts.scheme == "http"
        unsafe = plain and secret_variable is not None and host not in _LOOPBACK
        require(not unsafe, "address", "must be https where a secret is sent", f"{parts.scheme}://{host}")
        self._host, self._port, self._path = host, parts.port, parts.path or "/"
        self._tls = None if plain else context or ssl.create_default_context()
        self._secret_variable = secret_variable
        self.label = f"{parts.scheme}://{parts.netloc}{self._path}"
        self.identity = f"http:{self.label}"

    def __repr__(self) -> str:
        return f"HttpSource({self.label})"

    def ask(self, x: Tokens) -> Outputs:
        """Post one query and wait for its answer."""
        numbered, number = self._introduced().numbered, next(self._numbers)
        query = _frames.pack({"kind": "query", "number": number}, x)
        data = self._request("POST", query, self.max_bytes + _OVERHEAD)
        return _frames.answer_of(_frames.unpack(data, self.max_bytes), number if numbered else None)

    def secrets(self) -> tuple[str, ...]:
        """What must not be shown, should the server send it back."""
        secret = os.environ.get(self._secret_variable or "")
        return (secret,) if secret else ()

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _introduced(self) -> _frames.Hello:
        if self._hello is None:
            data = self._request("GET", None, MAX_HEADER_BYTES)
            self._hello = _frames.hello_of(_frames.json_object(data, f"the greeting of {self.label}"))
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
        except TimeoutError:
            raise Transient(f"no answer within {self.timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise OracleError(f"{self.label} has no valid certificate ({error.verify_message})") from None
        except (http.client.HTTPException, OSError) as error:
            raise Transient(f"{self.label} {_why(error)}") from None
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
        if response.status in _BUSY or response.status >= 500:
            self._busy(response)
        if response.status != 200:
            raise OracleError(f"{self.label} refuses with status {response.status}")
        claimed = response.getheader("Content-Length")
        if claimed is not None and not re.fullmatch("[0-9]{1,18}", claimed):
            raise OracleError(f"{self.label} answers with a length that is no size")
        # The length is what the server claims; without one the reading itself is bounded.
        expected = response.length
        data = b"" if (expected or 0) > limit else response.read(limit + 1)
        if (expected or 0) > limit or len(data) > limit:
            raise OracleError(f"{self.label} answers with more than {limit} bytes")
        if expected is not None and len(data) < expected:  # `read(n)` does not notice
            raise Transient(f"{self.label} cut its answer off after {len(data)} of {expected} bytes")
        return data

    def _busy(self, response: http.client.HTTPResponse) -> None:
        text, wait = f"{self.label} answers with status {response.status}", retry_after(response)
        if wait is not None:
            text += f" and asks to wait {wait:.0f} s"
            text += f", more than the timeout of {self.timeout:g} s" if wait > self.timeout else ""
        raise Transient(text, wait, patience=self.timeout)


def retry_after(response: http.client.HTTPResponse) -> float | None:
    """Seconds that a busy server asks to wait, None if it does not say so in due form."""
    text = (response.getheader("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError, TypeError):
        return None


def _why(error: Exception) -> str:
    """What went wrong with a connection, in words of ours."""
    if isinstance(error, http.client.RemoteDisconnected):
        return "hung up without an answer"
    if isinstance(error, http.client.IncompleteRead):
        return "cut its answer off"
    if isinstance(error, http.client.HTTPException):
        return f"does not speak HTTP as it should ({type(error).__name__})"
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return f"cannot be reached ({str(reason).lower()})"
