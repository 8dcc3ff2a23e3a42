"""Serve a layer on this machine only: `python -m attnlearn.oracle.serve_http LAYER --port 0`.

Binds to 127.0.0.1 and prints the address (port 0: any free one). With `--secret-variable NAME` a request
needs the bearer token that the environment variable NAME holds. For
`attnlearn extract --oracle http://127.0.0.1:PORT/`.

Bounded: clients at once, bytes of all their queries together (beyond either: status 503 with `Retry-After`), tokens of a
sequence (an error frame), and the time of a connection from its first byte to the last (it is closed).
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attnlearn.oracle import _calibration as calibration
from attnlearn.oracle import _serve

_TOO_BUSY = (
    b"HTTP/1.0 503 Busy\r\nRetry-After: %d\r\nContent-Length: 0\r\n\r\n" % calibration.SERVE_RETRY_SECONDS
)


def make_server(hidden: _serve.Hidden, port: int = 0, secret: str | None = None) -> Server:
    """A server on loopback; `.serve_forever()` starts it, `.server_address` says where.

    >>> from attnlearn import AttentionLayer
    >>> server = make_server(_serve.Hidden(AttentionLayer.random(2, 4)))
    >>> server.server_address[0]
    '127.0.0.1'
    >>> server.server_close()
    """
    return Server(("127.0.0.1", port), hidden, secret)


class Server(ThreadingHTTPServer):
    """Threads for a bounded number of clients, each for a bounded time."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], hidden: _serve.Hidden, secret: str | None) -> None:
        super().__init__(address, Handler)
        self.hidden, self.secret = hidden, secret
        self._clients = threading.BoundedSemaphore(calibration.SERVE_CLIENTS)
        self._room, self._lock = calibration.SERVE_BODY_BYTES, threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand the connection to a thread, or turn it away when there are too many."""
        if self._clients.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(_TOO_BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, which is cut when its time is over: a socket's own timeout restarts with every byte."""
        clock = threading.Timer(calibration.SERVE_SECONDS, _cut, [request])
        clock.daemon = True
        clock.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            clock.cancel()
            self._clients.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silence: a client that hangs up is no news, and nothing else gets here."""

    def with_room(self, size: int, work: Callable[[], None]) -> bool:
        """Do the work if all queries under way and this one of `size` bytes are not too much; else False."""
        with self._lock:
            if size > self._room:
                return False
            self._room -= size
        try:
            work()
        finally:
            with self._lock:
                self._room += size
        return True


def _cut(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """GET: the hello. POST: a query frame, answered with a frame."""

    server: Server
    timeout = calibration.SERVE_SECONDS

    def do_GET(self) -> None:
        """Greet."""
        if self._allowed():
            self._send(200, json.dumps(self.server.hidden.hello).encode(), "application/json")

    def do_POST(self) -> None:
        """Answer a query."""
        length = self.headers.get("Content-Length", "")
        if not self._allowed():
            return
        if not (length.isascii() and length.isdigit()):
            self._send(411)
        elif len(length) > 12 or int(length) > calibration.MAX_BODY_BYTES + calibration.MAX_HEADER_BYTES:
            self._send(413)
        elif not self.server.with_room(int(length), lambda: self._answer(int(length))):
            self._send(503)

    def _answer(self, length: int) -> None:
        data = self.rfile.read(length)
        if len(data) < length:
            self._send(400)
            return
        header, x = _serve.read_query(data)
        self._send(200, self.server.hidden.reply(header, x), "application/octet-stream")

    def _allowed(self) -> bool:
        given, secret = self.headers.get("Authorization", ""), self.server.secret
        if secret is None or hmac.compare_digest(given.encode(), f"Bearer {secret}".encode()):
            return True
        self._send(401)
        return False

    def _send(self, status: int, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 503:
            self.send_header("Retry-After", str(calibration.SERVE_RETRY_SECONDS))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silence: a log of requests is the caller's to keep."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse `argv` and serve until interrupted."""
    arguments = _serve.parser((__doc__ or "").split(":")[0])
    arguments.add_argument("--port", type=int, default=0, help="0: any free one")
    arguments.add_argument(
        "--secret-variable", help="environment variable with the token requests must bring"
    )
    options = arguments.parse_args(argv)
    secret = None
    if options.secret_variable is not None:
        secret = os.environ.get(options.secret_variable)
        if not secret:
            raise ValueError(
                f"secret-variable: must name a set environment variable, got {options.secret_variable}"
            )
    with make_server(_serve.hidden(options), options.port, secret) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(_serve.run(main, None))
