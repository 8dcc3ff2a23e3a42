"""A server on loopback that speaks HTTP byte by byte and misbehaves from a given request on; and the ways to do so.

A way takes the connection and the body that would be right, and writes what it likes.
"""

from __future__ import annotations

import gzip
import json
import pickle
import socket
import struct
import threading
import time
from contextlib import suppress

import numpy as np

from attnlearn.oracle import _frames

DIM = 4
HELLO = {"kind": "hello", "protocol": 2, "dim": DIM, "out_dim": DIM, "dtype": "float64"}
NEVER = 10**9


class RawServer:
    """Answers rightly with `layer`; `way` answers greetings and queries, or only queries, from number `after` on."""

    def __init__(self, layer, way, after=0, *, greets=True, lies=None):
        self.layer, self.way, self.after, self.greets, self.lies = layer, way, after, greets, lies
        self.queries, self.last = 0, None
        self.closing = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while not self.closing.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection):
        with connection, suppress(OSError):
            head, _, body = self._request(connection)
            post = head.startswith(b"POST")
            right = self._answer(body) if post else json.dumps(HELLO).encode()
            if self.queries > self.after or (self.greets and self.after == 0 and not post):
                self.way(self, connection, right)
            else:
                send(connection, right)

    def _request(self, connection):
        data = b""
        while b"\r\n\r\n" not in data:
            data += _some(connection)
        head, blank, body = data.partition(b"\r\n\r\n")
        length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        while length and len(body) < int(length[0].split(b":")[1]):
            body += _some(connection)
        return head, blank, body

    def _answer(self, body):
        header, x = _frames.unpack(body)
        self.queries += 1
        y = self.layer(x)
        frame = ({"kind": "answer", "number": header.get("number")}, y)
        if self.lies is not None and self.queries > self.after:
            frame = self.lies(self, *frame)
        self.last = frame
        return _frames.pack(*frame) if isinstance(frame, tuple) else frame

    def close(self):
        self.closing.set()
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def _some(connection):
    piece = connection.recv(1 << 16)
    if not piece:
        raise OSError
    return piece


def send(connection, body, status="200 OK", headers="", length=None):
    """A response in due form, but for what is said otherwise."""
    size = len(body) if length is None else length
    text = f"HTTP/1.1 {status}\r\n{headers}" + ("" if size == "" else f"Content-Length: {size}\r\n")
    connection.sendall(text.encode("utf-8") + b"\r\n" + body)


def status(text, headers=""):
    return lambda server, connection, right: send(connection, b"", text, headers)


def raw(data):
    return lambda server, connection, right: connection.sendall(data)


def body(change, **options):
    return lambda server, connection, right: send(connection, change(right), **options)


def refuse(server, connection, right):
    server.close()


def reset(server, connection, right):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def silent(server, connection, right):
    server.closing.wait(20)


def repeat(piece, pause, first=b""):
    def way(server, connection, right):
        connection.sendall(first)
        ends = time.monotonic() + 20
        while time.monotonic() < ends and not server.closing.is_set():
            connection.sendall(piece)
            time.sleep(pause)

    return way


def kept_open(server, connection, right):
    send(connection, right, length=len(right) + 100)
    silent(server, connection, right)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

# name: (way, what the error says of it)
WAYS = {
    "refused": (refuse, "connection refused|hung up|reset"),
    "hang up": (lambda server, connection, right: None, "hung up without an answer"),
    "reset": (reset, "connection reset|hung up"),
    "status 500": (status("500 Oops"), "status 500"),
    "status 503": (status("503 Busy"), "after 2 tries: .* status 503"),
    "status 429": (status("429 Slow"), "status 429"),
    "status 408": (status("408 Late"), "status 408"),
    "retry now": (status("429 Slow", "Retry-After: 0\r\n"), "status 429 and asks to wait 0 s"),
    "retry in an hour": (status("503 Busy", "Retry-After: 3600\r\n"), "wait 3600 s, more than the timeout"),
    "retry in 2100": (status("503 Busy", "Retry-After: Fri, 01 Jan 2100 00:00:00 GMT\r\n"), "more than the"),
    "retry soon": (status("503 Busy", "Retry-After: soon\r\n"), "status 503$"),
    "retry digits": (status("503 Busy", f"Retry-After: {'9' * 5000}\r\n"), "more than the timeout"),
    "status 404": (status("404 None"), "refuses with status 404"),
    "status 401": (status("401 Who"), "refuses with status 401"),
    "status 403": (status("403 No"), "refuses with status 403"),
    "redirect": (status("302 There", "Location: http://127.0.0.1:9/\r\n"), "status 302"),
    "to a file": (status("301 There", "Location: file:///etc/passwd\r\n"), "status 301"),
    "no content": (status("204 Empty"), "status 204"),
    "partial": (status("206 Part"), "status 206"),
    "not modified": (status("304 Same"), "status 304"),
    "status 999": (status("999 What"), "status 999"),
    "no HTTP": (raw(b"220 smtp ready\r\n"), "does not speak HTTP"),
    "no status": (raw(b"HTTP/1.1 \r\n\r\n"), "does not speak HTTP"),
    "word as status": (raw(b"HTTP/1.1 two hundred\r\n\r\n"), "does not speak HTTP"),
    "HTTP 9": (raw(b"HTTP/9.9 200 OK\r\n\r\n"), "does not speak HTTP"),
    "TLS": (raw(b"\x15\x03\x01\x00\x02\x02\x28"), "does not speak HTTP"),
    "long status": (raw(b"HTTP/1.1 200 " + b"x" * 70_000), "does not speak HTTP"),
    "long header": (raw(OK + b"X: " + b"x" * 70_000 + b"\r\n\r\n"), "does not speak HTTP"),
    "many headers": (raw(OK + b"X: y\r\n" * 200 + b"\r\n"), "does not speak HTTP"),
    "cut in half": (
        lambda server, connection, right: send(connection, right[: len(right) // 2], length=len(right)),
        r"cut its answer off after \d+ of \d+ bytes",
    ),
    "length too long": (
        lambda server, connection, right: send(connection, right, length=len(right) + 100),
        "cut its answer off after",
    ),
    "length too short": (
        lambda server, connection, right: send(connection, right, length=len(right) - 1),
        "ends too early|not JSON",
    ),
    "length negative": (body(bytes, length=-1), "length that is no size"),
    "length a word": (body(bytes, length="many"), "length that is no size"),
    "length squared": (body(bytes, length="²"), "length that is no size"),
    "two lengths": (body(bytes, headers="Content-Length: 3\r\n"), "length that is no size|not JSON|early"),
    "length huge": (body(bytes, length=1 << 50), "answers with more than"),
    "length of 5000 digits": (body(bytes, length="9" * 5000), "length that is no size"),
    "without end": (repeat(b"x" * 10_000, 0.0, OK + b"\r\n"), "answers with more than"),
    "chunk cut off": (raw(CHUNKED + b"64\r\nshort"), "cut its answer off"),
    "chunk of no size": (raw(CHUNKED + b"zz\r\nshort\r\n"), "cut its answer off"),
    "chunks without end": (repeat(b"5\r\nxxxxx\r\n" * 1000, 0.0, CHUNKED), "answers with more than"),
    "gzip": (body(gzip.compress, headers="Content-Encoding: gzip\r\n"), "exceeds|not JSON"),
    "empty": (body(lambda right: b""), "ends too early|not JSON"),
    "page": (body(lambda right: b"<html>Sign in</html>"), "exceeds|not JSON|early"),
    "pickle": (body(lambda right: pickle.dumps({"a": 1})), "exceeds|not JSON|early"),
    "something behind": (body(lambda right: right + b"!"), "1 bytes follow|not JSON"),
    "deep JSON": (
        body(lambda right: struct.pack("<IQ", 60_000, 0) + b"[" * 60_000),
        "not JSON|more than 65536 bytes",
    ),
}

# These wait for the timeout.
SLOW_WAYS = {
    "silent": (silent, "no answer within"),
    "drip": (repeat(b"x", 0.05, OK + b"\r\n"), "no answer within"),
    "headers drip": (repeat(b"X: y\r\n", 0.05, OK), "no answer within"),
    "continue for ever": (repeat(b"HTTP/1.1 100 Continue\r\n\r\n", 0.01), "no answer within"),
    "kept open": (kept_open, "no answer within"),
}


def shaped(change):
    return lambda server, header, y: (header, change(y))


def headed(**changes):
    return lambda server, header, y: (
        {key: value for key, value in {**header, **changes}.items() if value is not None},
        y,
    )


def claimed(**changes):
    """A frame whose header contradicts its body."""

    def lie(server, header, y):
        text = json.dumps(
            {**header, "dtype": "float64", "shape": list(y.shape), **changes}, allow_nan=True
        ).encode()
        return struct.pack("<IQ", len(text), y.nbytes) + text + y.tobytes()

    return lie


def stray(server, header, y):
    """The answer to the query before."""
    return server.last


def complaint(text):
    return lambda server, header, y: (
        {"kind": "error", "number": header["number"], "message": text},
        None,
    )


def infinite(y):
    return np.where(np.arange(y.size).reshape(y.shape) == 1, np.inf, y)


# name: (lie about the answer to a query, what the error says of it)
LIES = {
    "one row": (shaped(lambda y: y[:, :1] if y.shape[1] > 1 else y[:0]), "with shape"),
    "one sequence too many": (shaped(lambda y: np.concatenate([y, y[:1]])), "with shape"),
    "another width": (shaped(lambda y: y[:, :, :-1]), "with shape"),
    "nothing": (shaped(lambda y: y[:, :, :0]), "with shape"),
    "NaN": (shaped(lambda y: y * np.nan), "NaN or infinity"),
    "infinity": (shaped(infinite), "NaN or infinity"),
    "half": (claimed(dtype="float16"), "says it is float16"),
    "objects": (claimed(dtype="object"), "says it is object"),
    "negative": (claimed(shape=[-1, -2, 4]), "says it is"),
    "huge": (claimed(shape=[1 << 40, 1, 4]), "says it is"),
    "shape a word": (claimed(shape="big"), "says it is"),
    "shape with an escape": (claimed(dtype="\x1b[2J\x1b[31mfloat"), "says it is float of shape"),
    "stray": (stray, "is stray or repeated"),
    "unnumbered": (headed(number=None), "is stray or repeated"),
    "number a word": (headed(number="1"), "is stray or repeated"),
    "greets again": (
        lambda server, header, y: ({**HELLO, "number": header["number"]}, None),
        "of kind hello",
    ),
    "of no kind": (headed(kind=None), "of kind None"),
    "refusal": (complaint("not today"), "the oracle says: not today"),
    "refusal in red": (complaint("\x1b[31mno\x1b[0m\r\n\x07way\u202e"), "the oracle says: no way$"),
    "long refusal": (complaint("no " * 10_000), "the oracle says: no no .*…$"),
    "refusal of no words": (complaint([1, {"a": 2}]), "the oracle says: "),
}

# Greetings that are no greeting; what the error says of them.
GREETINGS = {
    "protocol 3": ({**HELLO, "protocol": 3}, "expected a hello of protocol 1 or 2"),
    "protocol true": ({**HELLO, "protocol": True}, "expected a hello"),
    "dim a word": ({**HELLO, "dim": "4"}, "expected a hello"),
    "dim 0": ({**HELLO, "dim": 0}, "expected a hello"),
    "dim huge": ({**HELLO, "dim": 10**100}, "expected a hello"),
    "dtype int8": ({**HELLO, "dtype": "int8"}, "expected a hello"),
    "dtype a list": ({**HELLO, "dtype": ["float64"]}, "expected a hello"),
    "no out_dim": ({key: HELLO[key] for key in HELLO if key != "out_dim"}, "expected a hello"),
    "a list": ([HELLO], "not a JSON object"),
    "an escape": ({"kind": "\x1b]0;title\x07hi"}, "expected a hello .*got {'kind': "),
}
