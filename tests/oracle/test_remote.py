from __future__ import annotations

import json
import pickle
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from attnlearn import AttentionLayer, OracleError
from attnlearn.extraction import ExtractConfig, extract
from attnlearn.oracle import HttpSource, Oracle, ProcessSource, _frames, parse
from attnlearn.oracle._serve import Hidden
from attnlearn.oracle.serve_http import make_server

SECRET = "s3cr3t-do-not-store"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("attnlearn.oracle._patience.BACKOFF_SECONDS", 0.001)


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(num_heads=2, dim=4, bias=True, seed=seed).astype(np.float32)


@pytest.fixture
def file(layer, tmp_path):
    path = tmp_path / "layer.safetensors"
    layer.save(path)
    return path


@pytest.fixture
def served():
    """Start servers in threads; all are stopped in the end."""
    servers = []

    def serve(server):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def command(file, *options):
    return [sys.executable, "-m", "attnlearn.oracle.serve_process", str(file), *options]


def test_the_same_answers_everywhere(layer, file, rng, served):
    x = rng.standard_normal((20, 3, 4)).astype(np.float32)
    specs = [
        str(file),
        f"layer:{file}",
        f"process:{' '.join(command(file))}",
        served(make_server(Hidden(layer))),
    ]
    for spec in specs:
        with parse(spec) as oracle:
            assert (oracle.dim, oracle.out_dim) == (4, 4)
            assert oracle(x).tobytes() == layer(x).tobytes()
            assert oracle(x.astype(np.float64)).dtype == np.float64
            assert oracle.counts.sequences == 40


def test_extraction_ends_the_same_in_process_over_a_subprocess_and_over_http(layer, file, served):
    config = ExtractConfig(certify_sequences=200)
    found = []
    for spec in (str(file), f"process:{' '.join(command(file))}", served(make_server(Hidden(layer)))):
        with parse(spec) as oracle:
            found.append(extract(oracle, 4, config=config, progress=False))
    for other in found[1:]:
        assert other.layer == found[0].layer
        assert other.stats["sequences"] == found[0].stats["sequences"]


def test_served_dtype_and_rounding(file, rng):
    with Oracle.wrap(ProcessSource(command(file, "--dtype", "float64", "--round", "3"))) as oracle:
        assert oracle.noise().rounding == "3 decimals"
    with Oracle.wrap(ProcessSource(command(file, "--round", "bfloat16"))) as oracle:
        assert oracle.noise().rounding == "bfloat16"


def test_servers_refuse_bad_options(file):
    for options in (["--round", "much"], ["--dtype", "int8"]):
        result = subprocess.run(command(file, *options), capture_output=True, text=True, timeout=60)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
    missing = subprocess.run(command("nowhere.safetensors"), capture_output=True, text=True, timeout=60)
    assert missing.returncode == 2


def test_http_server_program(layer, file, rng, monkeypatch):
    monkeypatch.setenv("ATTNLEARN_ORACLE_SECRET", SECRET)
    program = [sys.executable, "-m", "attnlearn.oracle.serve_http", str(file), "--port", "0"]
    program += ["--secret-variable", "ATTNLEARN_ORACLE_SECRET"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            x = rng.standard_normal((2, 3, 4)).astype(np.float32)
            np.testing.assert_array_equal(parse(address)(x), layer(x))
            with pytest.raises(OracleError, match="status 401"):
                Oracle.wrap(HttpSource(address))(x)
        finally:
            process.kill()


def test_programs_end_with_their_oracle(file):
    source = ProcessSource(command(file))
    oracle = Oracle.wrap(source)
    assert oracle.dim == 4
    process = source._program.process
    oracle.close()
    assert process.poll() is not None


def test_no_shell(tmp_path):
    marker = tmp_path / "marker"
    for spec in (f"process:true; touch {marker}", f"process:$(touch {marker})"):
        with parse(spec) as oracle, pytest.raises(OracleError):
            oracle(np.ones((1, 2, 4)))
    assert not marker.exists()


@pytest.mark.parametrize("bad", ["", [], "ls -l"])
def test_commands_are_lists(bad):
    with pytest.raises(ValueError, match=r"^command: "):
        ProcessSource(bad)


def test_missing_program():
    with parse("process:/nowhere/program") as oracle, pytest.raises(OracleError, match="cannot start"):
        oracle(np.ones((1, 2, 4)))


@pytest.mark.parametrize(
    "spec", ["", "process:", "process:'", "nowhere", "layer:nowhere", "ftp://x", "http:x"]
)
def test_bad_specs(spec):
    with pytest.raises(ValueError):
        parse(spec)


def handler(respond):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hello = {"kind": "hello", "protocol": 1, "dim": 4, "out_dim": 4, "dtype": "float64"}
            self.reply(200, json.dumps(hello).encode())

        def do_POST(self):
            _, x = _frames.unpack(self.rfile.read(int(self.headers["Content-Length"])))
            respond(self, x)

        def reply(self, status, body, length=None):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def test_busy_servers_are_asked_again(served):
    calls = []

    def respond(request, x):
        calls.append(1)
        if len(calls) == 1:
            request.reply(429, b"")
        else:
            request.reply(200, _frames.pack({"kind": "answer"}, x))

    oracle = Oracle.wrap(HttpSource(served(handler(respond))))
    oracle(np.ones((2, 3, 4)))
    assert (oracle.counts.retried, oracle.counts.sequences) == (2, 2)


def test_unreachable_server():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(OracleError, match="cannot be reached"):
            Oracle.wrap(HttpSource(address, timeout=5.0), retries=0)(np.ones((1, 2, 4)))


def test_certificates_are_verified(served):
    context = HttpSource("https://127.0.0.1/")._tls
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    address = served(handler(lambda request, x: None))
    with pytest.raises(OracleError, match="cannot be reached"):  # not TLS at all
        Oracle.wrap(HttpSource(address.replace("http", "https"), timeout=5.0), retries=0)(np.ones((1, 2, 4)))


@pytest.mark.parametrize(
    "address",
    ["ftp://a/", "https://", "https://me:pw@host/", "https://me@host/", "https://h/?key=1", "https://h/#a"],
)
def test_bad_addresses(address):
    with pytest.raises(ValueError, match=r"^address: ") as caught:
        HttpSource(address)
    assert "pw" not in str(caught.value)
    assert "key" not in str(caught.value)


def test_secrets_go_to_the_server_and_nowhere_else(layer, tmp_path, monkeypatch, served, rng):
    address = served(make_server(Hidden(layer), secret=SECRET))
    source = HttpSource(address, secret_variable="TEACHER_TOKEN")
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    with Oracle.wrap(source, cache=tmp_path, retries=0) as oracle:
        with pytest.raises(OracleError, match=r"TEACHER_TOKEN .* is not set"):
            oracle(x)
        monkeypatch.setenv("TEACHER_TOKEN", "wrong")
        with pytest.raises(OracleError, match="401"):
            oracle(x)
        monkeypatch.setenv("TEACHER_TOKEN", SECRET)
        np.testing.assert_array_equal(oracle(x), layer(x))
        shown = repr(oracle) + repr(source) + str(vars(source)) + str(vars(oracle))
    assert SECRET not in shown
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(SECRET.encode() in data for data in written)
    with pytest.raises(ValueError, match="must be https"):
        HttpSource("http://example.org/", secret_variable="TEACHER_TOKEN")
    monkeypatch.setenv("TEACHER_TOKEN", "a\r\nX-Evil: 1")
    with pytest.raises(OracleError, match="not printable") as caught:
        source.ask(x)
    assert "Evil" not in str(caught.value)


def test_servers_answer_hostile_queries_with_errors(layer, served):
    hidden = Hidden(layer)
    for header, x in [
        ({"kind": "steal"}, None),
        ({"kind": "query"}, None),
        ({"kind": "query"}, np.ones((1, 2, 9))),
    ]:
        with pytest.raises(OracleError, match="the oracle says"):
            _frames.answer_of(_frames.unpack(hidden.reply(header, x)))
    address = HttpSource(served(make_server(hidden)))
    with pytest.raises(OracleError, match="the oracle says: expected a query"):
        _frames.answer_of(_frames.unpack(address._request("POST", pickle.dumps(1), 10_000)))
    assert not any(array.tobytes() in json.dumps(hidden.hello).encode() for array in layer.parameters)


@pytest.mark.parametrize(
    "header",
    [
        {"shape": [1, 2, 3], "dtype": "float32"},
        {"shape": [1, 2, -3], "dtype": "float64"},
        {"shape": [6], "dtype": "float64"},
        {"shape": [1, 2, 3], "dtype": "object"},
        {"shape": "1,2,3", "dtype": "float64"},
        {"shape": [True, 2, 3], "dtype": "float64"},
        {},
    ],
)
def test_frames_that_contradict_themselves(header):
    text = json.dumps(header).encode()
    body = np.ones(6).tobytes()
    with pytest.raises(OracleError):
        _frames.unpack(_frames._PREFIX.pack(len(text), len(body)) + text + body)
