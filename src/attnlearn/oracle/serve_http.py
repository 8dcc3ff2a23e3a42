"""Serve a layer on this machine only: `python -m attnlearn.oracle.serve_http LAYER --port 0`.

Binds to 127.0.0.1 and prints the address (port 0: any free one). With `--secret-variable NAME` a request
needs the bearer token that the environment variable NAME holds. For `attnlearn extract http://127.0.0.1:PORT/`.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from attnlearn.oracle import _serve
from attnlearn.oracle._calibration import MAX_BODY_BYTES, MAX_HEADER_BYTES, REMOTE_TIMEOUT_SECONDS


def make_server(hidden: _serve.Hidden, port: int = 0, secret: str | None = None) -> ThreadingHTTPServer:
    """A server on loopback; `.serve_forever()` starts it, `.server_address` says where.

    >>> from attnlearn import AttentionLayer
    >>> server = make_server(_serve.Hidden(AttentionLayer.random(2, 4)))
    >>> server.server_address[0]
    '127.0.0.1'
    >>> server.server_close()
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = REMOTE_TIMEOUT_SECONDS

        def do_GET(self) -> None:
            if self._allowed():
                self._send(200, json.dumps(hidden.hello).encode(), "application/json")

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not self._allowed():
                return
            if not length.isdigit() or int(length) > MAX_BODY_BYTES + MAX_HEADER_BYTES:
                self._send(413, b"", "text/plain")
                return
            header, x = _serve.read_query(self.rfile.read(int(length)))
            self._send(200, hidden.reply(header, x), "application/octet-stream")

        def _allowed(self) -> bool:
            given = self.headers.get("Authorization", "")
            if secret is None or hmac.compare_digest(given.encode(), f"Bearer {secret}".encode()):
                return True
            self._send(401, b"", "text/plain")
            return False

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silence: a log of requests is the caller's to keep."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server


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
