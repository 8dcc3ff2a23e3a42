"""The example servers against clients that mean ill: an error answer each time, bounded memory and time, no traceback."""

from __future__ import annotations

import io
import json
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from attnlearn import AttentionLayer, OracleError
from attnlearn.oracle import Oracle, _calibration, _frames
from attnlearn.oracle._serve import Hidden
from attnlearn.oracle.serve_http import make_server
from attnlearn.oracle.serve_process import serve


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(num_heads=2, dim=4, seed=seed)


@pytest.fixture
def port(layer):
    server = make_server(Hidden(layer))
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def say(port, data, *, end=True, seconds=10):
    """Send raw bytes and read until the server hangs up; one that has not read all of them may do so by a reset."""
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection,
        suppress(ConnectionError),
    ):
        connection.sendall(data)
        if end:
            connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(1 << 16):
            answer += piece
    return answer


def post(body, length=None, headers=""):
    size = len(body) if length is None else length
    text = f"POST / HTTP/1.1\r\nHost: x\r\n{headers}" + ("" if size == "" else f"Content-Length: {size}\r\n")
    return text.encode("utf-8") + b"\r\n" + body


def framed(header, body=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<IQ", len(text) if size is None else size, len(body)) + text + body


QUERY = _frames.pack({"kind": "query", "number": 1}, np.ones((1, 2, 4)))
DEEP = framed(b"[" * 60_000)
REQUESTS = {
    "length squared": (post(b"", "²"), b" 411 "),
    "length of 5000 digits": (post(b"", "9" * 5000), b" 413 "),
    "length negative": (post(b"", "-1"), b" 411 "),
    "length with a sign": (post(b"", "+5"), b" 411 "),
    "length a word": (post(b"", "all"), b" 411 "),
    "length with underscores": (post(b"", "1_0"), b" 411 "),
    "no length": (post(b"", ""), b" 411 "),
    "chunked": (post(b"5\r\nhello\r\n0\r\n\r\n", "", "Transfer-Encoding: chunked\r\n"), b" 411 "),
    "too large": (post(b"", 1 << 40), b" 413 "),
    "cut off": (post(QUERY[:-8], len(QUERY)), b" 400 "),
    "empty": (post(b""), b"expected a query"),
    "deep": (post(DEEP), b"expected a query"),
    "many digits": (post(framed(b'{"shape": ' + b"1" * 5000 + b"}")), b"expected a query"),
    "not JSON": (post(framed(b"\xff\xfe")), b"expected a query"),
    "a list": (post(framed([1])), b"expected a query"),
    "too long inside": (post(framed({}, size=1 << 31)), b"expected a query"),
    "trailing": (post(QUERY + b"!"), b"expected a query"),
    "no kind": (post(_frames.pack({"number": 1}, np.ones((1, 2, 4)))), b"expected a query"),
    "another width": (post(_frames.pack({"kind": "query"}, np.ones((1, 2, 5)))), b'"kind": "error"'),
    "no tokens": (post(_frames.pack({"kind": "query"}, np.ones((1, 0, 4)))), b'"kind": '),
    "no sequences": (post(_frames.pack({"kind": "query"}, np.ones((0, 2, 4)))), b'"kind": '),
    "number a list": (post(_frames.pack({"kind": "query", "number": [1]}, np.ones((1, 2, 4)))), b'"answer"'),
    "too many tokens": (post(_frames.pack({"kind": "query"}, np.ones((1, 20_000, 4)))), b"at most 4096"),
    "another method": (b"PUT / HTTP/1.1\r\n\r\n", b"501 "),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400|505|Error"),
    "long line": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b" 414 "),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b" 431 "),
    "hangs up": (b"POST / HT", b""),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_malformed_requests_are_answered(name, port, capfd):
    request, answer = REQUESTS[name]
    said = say(port, request)
    assert any(part in said for part in answer.split(b"|"))
    assert b' "answer"' in say(port, post(QUERY))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "data", [DEEP, framed(b"{}", size=1 << 31), b"nonsense" * 10, framed([1]), framed({}, b"x")]
)
def test_a_program_asked_nonsense_says_so_and_ends(data, layer):
    sink = io.BytesIO()
    serve(Hidden(layer), io.BytesIO(data), sink)
    hello = _frames.pack(Hidden(layer).hello)
    assert sink.getvalue().startswith(hello)
    with pytest.raises(OracleError, match="the oracle says"):
        _frames.answer_of(_frames.unpack(sink.getvalue()[len(hello) :]))


def test_numbers_are_repeated(layer):
    for query, kind in [(np.ones((1, 2, 4)), "answer"), (np.ones((1, 2, 5)), "error")]:
        header, _ = _frames.unpack(Hidden(layer).reply({"kind": "query", "number": 17}, query))
        assert (header["kind"], header["number"]) == (kind, 17)


def test_a_failure_of_the_server_is_an_error_frame(layer, monkeypatch):
    hidden = Hidden(layer)
    monkeypatch.setattr(Hidden, "_outputs", lambda self, x: 1 // 0)
    with pytest.raises(OracleError, match=r"the oracle says: the server failed \(ZeroDivisionError\)"):
        _frames.answer_of(_frames.unpack(hidden.reply({"kind": "query"}, np.ones((1, 2, 4)))))


def test_more_clients_than_there_is_room_for_are_asked_to_come_back(port, monkeypatch):
    with ExitStack() as stack:
        for _ in range(_calibration.SERVE_CLIENTS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(b"GET")
        ends = time.monotonic() + 10
        while b" 503 " not in (said := say(port, b"", end=False)) and time.monotonic() < ends:
            pass
        assert b" 503 " in said
        assert b"Retry-After: 1" in said
    assert Oracle.wrap(f"http://127.0.0.1:{port}/", timeout=20.0).dim == 4  # obeys, and comes back


def test_queries_together_have_a_limit(port):
    size, said, ends = _calibration.MAX_BODY_BYTES, b"", time.monotonic() + 10
    with ExitStack() as stack:
        while b" 503 " not in said and time.monotonic() < ends:
            large = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            large.sendall(post(b"", size))  # refused itself while the clients of another test still leave
            time.sleep(0.01)
            said = say(port, post(b"x" * 1000))
        assert b" 503 " in said
    ends = time.monotonic() + 10
    while b" 200 " not in (said := say(port, post(QUERY))) and time.monotonic() < ends:
        time.sleep(0.01)
    assert b" 200 " in said


def drip(connection):
    while True:
        connection.sendall(b"x")  # every byte restarts a socket's own timeout
        time.sleep(0.05)


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n", post(b"", 100)])
def test_a_connection_has_an_end(first, layer, monkeypatch):
    monkeypatch.setattr(_calibration, "SERVE_SECONDS", 0.5)
    server = make_server(Hidden(layer))
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    started = time.monotonic()
    try:
        with socket.create_connection(server.server_address, timeout=10) as connection:
            connection.sendall(first)
            with pytest.raises(ConnectionError):
                drip(connection)
        assert time.monotonic() - started < 5
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("heads", "dim", "tokens"),
    [(2, 4, 20_000), (64, 8, 4096), pytest.param(2, 4, 4096, marks=pytest.mark.slow)],
)
def test_one_request_takes_no_gigabytes(heads, dim, tokens):
    hidden = Hidden(AttentionLayer.random(heads, dim))
    tracemalloc.start()
    try:
        hidden.reply({"kind": "query"}, np.ones((1, tokens, dim)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 30
    assert hidden.longest >= 512


def test_the_server_program_survives_all_of_it_without_a_word(layer, tmp_path):
    layer.save(tmp_path / "layer.safetensors")
    command = [sys.executable, "-m", "attnlearn.oracle.serve_http", str(tmp_path / "layer.safetensors")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline().strip().strip("/").split(":")[-1])
            for request, _ in REQUESTS.values():
                say(port, request, seconds=30)
            assert b' "answer"' in say(port, post(QUERY), seconds=30)
        finally:
            process.terminate()
        assert process.stderr.read() == ""
