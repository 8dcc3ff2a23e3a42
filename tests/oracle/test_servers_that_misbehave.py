"""Every way in which a server can fail ends in ORACLE_FAILED with its cause, in bounded time, from the start and in every phase."""

from __future__ import annotations

import base64
import email.utils
import json
import re
import time
from itertools import pairwise
from urllib.parse import quote

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn.extraction import extract
from attnlearn.oracle import HttpSource, Oracle

from . import _servers
from ._phases import START, Watched, everywhere, middles
from ._servers import RawServer

MIDDLE = "measure"
SECRET = "s3cr3t/do+not=store"


def honest(server, connection, right):
    _servers.send(connection, right)


@pytest.fixture(scope="module")
def layer():
    return AttentionLayer.random(num_heads=1, dim=_servers.DIM, seed=3)


@pytest.fixture(scope="module")
def places(layer):
    """The number of queries before the middle of every phase."""
    progress, calls = Watched(), []

    def note(server, header, y):
        calls.append(progress.now)
        return header, y

    server = RawServer(layer, honest, 0, greets=False, lies=note)
    try:
        assert extract(server.address, _servers.DIM, progress=progress).certified
    finally:
        server.close()
    return middles(calls)


@pytest.fixture
def failing(layer, places, monkeypatch):
    """Extract from a server, and say how that ended."""
    monkeypatch.setattr("attnlearn.oracle._patience.BACKOFF_SECONDS", 0.01)
    monkeypatch.setenv("TEACHER_TOKEN", SECRET)
    servers = []

    def fails(cause, way, place, timeout=5.0, retries=1, **lies):
        after, progress = places[place], Watched()
        if place == START and lies:
            after = 1
        server = RawServer(layer, way, after, **lies)
        servers.append(server)
        source = HttpSource(
            server.address, secret_variable="TEACHER_TOKEN", timeout=timeout, max_bytes=100_000
        )
        oracle, started = Oracle.wrap(source, retries=retries), time.monotonic()
        solution = extract(oracle, _servers.DIM, progress=progress, raise_on_failure=False)
        assert time.monotonic() - started < 5 * timeout
        assert place == START or progress.now == place
        assert solution.outcome is Outcome.ORACLE_FAILED
        error = solution.stats["error"]
        assert re.search(cause, error), error
        assert error.isprintable()
        assert len(error) <= 300
        assert error in solution.verdict
        assert SECRET not in json.dumps(solution.to_json())
        assert server.queries == 0 or server.queries > after
        return solution

    yield fails
    for server in servers:
        server.close()


@pytest.mark.parametrize(("name", "place"), everywhere(_servers.WAYS))
def test_ways_to_fail(name, place, failing):
    way, cause = _servers.WAYS[name]
    failing(cause, way, place, timeout=1.0 if "retry now" in name else 5.0)


@pytest.mark.parametrize(("name", "place"), everywhere(_servers.SLOW_WAYS, slow=_servers.SLOW_WAYS))
def test_ways_to_be_slow(name, place, failing):
    way, cause = _servers.SLOW_WAYS[name]
    failing(cause, way, place, timeout=0.7, retries=0)


@pytest.mark.parametrize(("name", "place"), everywhere(_servers.LIES))
def test_ways_to_lie(name, place, failing):
    lie, cause = _servers.LIES[name]
    failing(cause, honest, place, lies=lie)


@pytest.mark.parametrize("name", _servers.GREETINGS)
def test_ways_to_greet(name, failing):
    greeting, cause = _servers.GREETINGS[name]
    failing(cause, _servers.body(lambda right: json.dumps(greeting).encode()), START)


@pytest.mark.parametrize("form", ["{0}", "Bearer {0}!", "{1}", "{2}", "S3CR3T/do+not=store"])
def test_a_token_that_the_server_sends_back_is_not_shown(form, failing):
    text = form.format(SECRET, base64.b64encode(SECRET.encode()).decode(), quote(SECRET, safe=""))
    lie = _servers.complaint(f"your token is {text}")
    error = failing("your token is ", honest, MIDDLE, lies=lie).stats["error"]
    assert "3cr3t" not in error.lower()


def test_a_server_that_repeats_no_numbers_is_believed_as_before(layer, monkeypatch):
    monkeypatch.setitem(_servers.HELLO, "protocol", 1)
    drop = _servers.headed(number=None)
    server = RawServer(layer, honest, 0, lies=drop)
    x = np.ones((2, 3, 4))
    try:
        np.testing.assert_array_equal(Oracle.wrap(server.address)(x), layer(x))
    finally:
        server.close()


@pytest.mark.parametrize("wait", ["1", "date"])
def test_a_server_that_asks_for_time_gets_it(wait, layer):
    waits = 2 if wait == "1" else 1

    def busy(server, connection, right):
        asked.append(time.monotonic())
        if len(asked) > waits:
            return _servers.send(connection, right)
        said = "1" if wait == "1" else email.utils.formatdate(time.time() + 2, usegmt=True)
        return _servers.send(connection, b"", "429 Slow", f"Retry-After: {said}\r\n")

    asked = []
    server = RawServer(layer, busy, 0, greets=False)
    try:
        oracle = Oracle.wrap(HttpSource(server.address, timeout=20.0), retries=1)  # more waits than retries
        assert oracle(np.ones((2, 3, 4))).shape == (2, 3, 4)
    finally:
        server.close()
    assert all(later - earlier >= 0.9 for earlier, later in pairwise(asked))
    assert oracle.counts.retried == 2 * waits


def test_an_answer_that_was_cut_off_is_asked_for_again(layer):
    def once(server, connection, right):
        _servers.send(connection, right[: -8 if server.queries == 1 else None], length=len(right))

    server = RawServer(layer, once, 0, greets=False)
    x = np.ones((2, 3, 4))
    try:
        oracle = Oracle.wrap(server.address)
        np.testing.assert_array_equal(oracle(x), layer(x))
    finally:
        server.close()
    assert (oracle.counts.retried, oracle.counts.sequences) == (2, 2)


def test_a_layer_that_changes_in_the_middle_is_not_certified(layer):
    other = AttentionLayer.random(num_heads=1, dim=_servers.DIM, seed=4)
    changed = RawServer(layer, honest, 12, greets=False)
    changed.lies = lambda server, header, y: (setattr(server, "layer", other), (header, y))[1]
    try:
        solution = extract(changed.address, _servers.DIM, progress=False, raise_on_failure=False)
    finally:
        changed.close()
    assert changed.layer is other
    assert not solution.certified
