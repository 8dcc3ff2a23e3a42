"""Every way in which a program can fail ends in ORACLE_FAILED with its cause, in bounded time, and leaves no process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attnlearn import Outcome
from attnlearn.extraction import extract
from attnlearn.oracle import Oracle, ProcessSource, parse
from tests.engine._work import alive

from . import _liar
from ._phases import START, Watched, everywhere, middles

LIAR = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_liar.py"))]
MIDDLE = "7"
NEVER = "1000000"
SECRETS = ["--api-key=SEKRET123", "--password", "SEKRET456"]

CAUSES = {
    "mute": "no answer within",
    "gibberish": "exceeds",
    "usage": "the process ended with exit code 2",
    "segfault at once": "the process ended by signal 11",
    "half a greeting": "the process ended with exit code 0",
    "half a greeting, then silence": "no answer within",
    "closes its output": "the process ended its output",
    "deep greeting": "not JSON",
    "list as greeting": "not a JSON object",
    "protocol 3": "expected a hello of protocol 1 or 2",
    "dim 0": "expected a hello",
    "huge greeting": "exceeds",
    "greeting with a body": "exceeds",
    "greets twice": "said something without being asked",
    "exit": "after 2 tries: the process ended with exit code 3",
    "exit 0": "the process ended with exit code 0",
    "killed": "the process ended by signal 9",
    "segfault": "the process ended by signal 11",
    "stopped": "no answer within",
    "slow": "no answer within",
    "drip": "no answer within",
    "half": "the process ended with exit code 0",
    "half, then silence": "no answer within",
    "output closed": "the process ended its output",
    "stray": "is stray or repeated",
    "unnumbered": "is stray or repeated",
    "huge": "exceeds",
    "endless": "exceeds",
    "print": "exceeds",
    "deep": "not JSON",
    "shape": "with shape|says it is",
    "shape of a lie": "says it is",
    "NaN": "NaN or infinity",
    "greets": "of kind hello",
    "refusal": "the oracle says: not today$",
    "red": "the oracle says: no way$",
    "blabs": "the oracle says: .* is wrong$",
}
PATIENT = {name for name, cause in CAUSES.items() if "within" in cause}
TIME = PATIENT | {"closes its output", "output closed"}


def test_every_way_has_a_cause():
    assert set(CAUSES) | {"children", "twice"} == set(_liar.GREETINGS) | set(_liar.ANSWERS)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The number of queries before the middle of every phase."""
    progress, calls = Watched(), []
    source = ProcessSource([*LIAR, "exit", NEVER, str(tmp_path_factory.mktemp("straight") / "memory")])
    ask = source.ask

    def noted(x):
        calls.append(progress.now)
        return ask(x)

    source.ask = noted
    with Oracle.wrap(source) as oracle:
        assert extract(oracle, _liar.DIM, progress=progress).certified
    return middles(calls)


@pytest.mark.parametrize(("way", "place"), everywhere(CAUSES, slow=TIME))
def test_ways_to_fail(way, place, places, tmp_path, monkeypatch):
    monkeypatch.setattr("attnlearn.oracle._patience.BACKOFF_SECONDS", 0.01)
    after, progress = str(places[place]), Watched()
    source = ProcessSource([*LIAR, way, after, str(tmp_path / "memory"), *SECRETS], timeout=10.0)
    if way in PATIENT:
        source.timeout = 0.7
    with Oracle.wrap(source, retries=0 if way in PATIENT and after == "0" else 1) as oracle:
        started = time.monotonic()
        solution = extract(oracle, _liar.DIM, progress=progress, raise_on_failure=False)
        assert time.monotonic() - started < 10
    assert place == START or progress.now == place
    assert solution.outcome is Outcome.ORACLE_FAILED
    error = solution.stats["error"]
    assert re.search(CAUSES[way], error), error
    assert error.isprintable()
    assert "SEKRET" not in json.dumps(solution.to_json())
    assert solution.stats["sequences"] >= int(after)


def test_a_program_that_answers_twice_is_started_again_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr("attnlearn.oracle._patience.BACKOFF_SECONDS", 0.01)
    with Oracle.wrap(ProcessSource([*LIAR, "twice", "2", str(tmp_path / "memory")])) as oracle:
        for value in (1.0, 2.0, 3.0, 4.0, 5.0):
            assert (oracle(np.full((1, 2, _liar.DIM), value)) == value).all()
        assert oracle.counts.retried == 2
        assert oracle.counts.sequences == 5


def children(folder):
    path = folder / "memory.children"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def gone(processes, seconds=10.0):
    ends = time.monotonic() + seconds
    while any(alive(process) for process in processes) and time.monotonic() < ends:
        time.sleep(0.05)
    return not any(alive(process) for process in processes)


proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")


@proc
def test_what_a_program_started_ends_with_its_oracle(tmp_path):
    source = ProcessSource([*LIAR, "children", "0", str(tmp_path / "memory")])
    with Oracle.wrap(source) as oracle:
        oracle(np.ones((1, 2, _liar.DIM)))
        found = children(tmp_path)
        assert len(found) == 3
        assert all(alive(child) for child in found)
    assert gone(found)


@proc
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_program_started_ends_with_our_process(end, tmp_path):
    command = [*LIAR, "children", "0", str(tmp_path / "memory")]
    code = (
        "import sys, time, numpy as np\nfrom attnlearn.oracle import Oracle, ProcessSource\n"
        f"source = ProcessSource({command!r})\nOracle.wrap(source)(np.ones((1, 2, 4)))\n"
        "print(source._program.process.pid, source._program._guard.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        found = [int(word) for word in process.stdout.readline().split()]
        found += children(tmp_path)
        assert len(found) == 5
        assert all(alive(each) for each in found)
        os.kill(process.pid, end)
        process.wait()
    assert gone(found)


def test_a_program_that_fails_once_is_started_again(tmp_path):
    memory = tmp_path / "memory"
    source = ProcessSource([*LIAR, "exit", "1", str(memory)])
    with Oracle.wrap(source) as oracle:
        oracle(np.ones((2, 3, 4)))
        program = source._program.process
        program.kill()
        program.wait()
        assert oracle(2 * np.ones((2, 3, 4))).sum() == 48
        assert oracle.counts.sequences == 4


def test_secrets_in_arguments_are_in_no_result(tmp_path, capsys):
    from attnlearn.cli.__main__ import main

    for way in ("blabs", "exit"):
        spec = f"process:{' '.join([*LIAR, way, MIDDLE, str(tmp_path / way), *SECRETS])}"
        result, page = tmp_path / "result.json", tmp_path / "page.html"
        words = ["extract", "--oracle", spec, "--dim", "4", "--retries", "0", "--timeout", "20"]
        words += ["--checkpoint", str(tmp_path / f"saved {way}"), "--cache", str(tmp_path / "cache")]
        assert main([*words, "--json", str(result), "--report", str(page)]) == 4
        shown = capsys.readouterr()
        assert "answering properly (the oracle " in " ".join(shown.out.split())
        written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(b"SEKRET" in data for data in [*written, (shown.out + shown.err).encode()])
        assert "process:python" in json.loads(result.read_text())["provenance"]["command"]


def test_secrets_in_a_specification_that_cannot_be_read_are_not_shown():
    with pytest.raises(ValueError, match=r"^oracle: ") as caught:
        parse("process:serve --api-key='SEKRET123")
    assert "SEKRET" not in str(caught.value)


@pytest.mark.parametrize("command", ["extract", "leak"])
def test_a_quiet_command_says_why_in_one_line(command, capsys):
    from attnlearn.cli.__main__ import main

    words = [command, "--oracle", "http://127.0.0.1:9/", "--dim", "4", "--quiet", "--retries", "0"]
    assert main([*words, "--timeout", "5"]) == 4
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.strip().split("\n")) == 1
    assert "connection refused" in shown.err


@pytest.mark.parametrize("options", [["--timeout", "0"], ["--timeout", "nan"], ["--retries", "-1"]])
def test_bad_timeouts_and_retries_are_refused(options, capsys):
    from attnlearn.cli.__main__ import main

    assert main(["extract", "--oracle", "http://127.0.0.1:9/", "--dim", "4", *options]) == 2
    assert options[0].strip("-") in capsys.readouterr().err
