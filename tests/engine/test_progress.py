from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest

from attnlearn.engine import Progress
from attnlearn.engine._bar import Bar, Notebook
from attnlearn.engine._progress import Plain, RunClock

PROGRAM = """
import time
from attnlearn.engine import Progress
progress = Progress.make({spec!r})
with progress.phase("spectrum", total=3):
    for step in range(3):
        progress.update(gap=0.25)
        with progress.phase("inner"):
            progress.update(rank=step)
            time.sleep(0.3)
print("result")
"""


def run(spec, **environment):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(spec=spec)],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "xterm", **environment},
        timeout=60,
    )


@pytest.mark.parametrize("spec", [None, False, True, "plain", "quiet", "bar"])
def test_piped_output_has_no_escape_codes_and_stdout_holds_the_result_only(spec):
    result = run(spec)
    assert (result.returncode, result.stdout) == (0, "result\n")
    assert "\x1b" not in result.stderr
    assert ("spectrum" in result.stderr) == (spec in (True, "plain", "bar"))


def on_terminal(spec, **environment):
    """What a terminal on standard error would get."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(spec=spec)],
        stdout=subprocess.PIPE,
        stderr=child,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(child)
    seen = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(parent)
    output = process.communicate(timeout=60)[0]
    assert (process.returncode, output) == (0, b"result\n")
    return seen.decode()


def test_bar_on_a_terminal_shows_phase_and_figure():
    seen = on_terminal(None)
    assert "spectrum" in seen
    assert "gap 0.25" in seen
    assert "rank 2" in seen
    assert "\x1b[" in seen


def test_no_color_and_dumb_terminals():
    assert "\x1b[3" not in on_terminal(None, NO_COLOR="1")
    assert on_terminal(None, TERM="dumb") == ""


def test_plain_lines_are_rate_limited():
    log = io.StringIO()
    progress = Plain(log, interval=1000.0)
    with progress.phase("fit", total=500):
        for _ in range(500):
            progress.update(loss=np.float64(0.125))
    first, last = log.getvalue().splitlines()
    assert first == "refining: started"
    assert last.startswith("refining: done in ")
    assert last.endswith("; loss 0.12")


def test_plain_lines_name_nested_phases_and_failures():
    log = io.StringIO()
    progress = Plain(log, interval=0.0)

    def fail():
        with progress.phase("fit"), progress.phase("solve", total=2):
            progress.update()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    lines = log.getvalue().splitlines()
    assert lines[1:3] == ["refining, solve: started", "refining, solve: 0 s, 1 of 2"]
    assert lines[3].startswith("refining, solve: left after")
    assert lines[4].startswith("refining: left after")


def test_make_keeps_instances_and_knows_notebooks(monkeypatch):
    plain = Plain()
    assert Progress.make(plain) is plain
    monkeypatch.setattr("attnlearn.engine._progress._in_notebook", lambda: True)
    assert type(Progress.make(None)) is Notebook
    assert type(Progress.make(False)) is Progress
    monkeypatch.setattr("attnlearn.engine._progress._in_notebook", lambda: False)
    monkeypatch.setattr("attnlearn.engine._progress._on_terminal", lambda: True)
    assert type(Progress.make(None)) is Bar


def test_update_outside_a_phase_is_harmless():
    Plain(io.StringIO()).update(loss=1.0)


RUN = """
import time
from attnlearn.engine import Progress
progress = Progress.make("bar")
with progress.run("recover"):
    with progress.phase("signals"):
        progress.expect(100.0)
    with progress.phase("moment"):
        progress.update(heads=8, weakest=2.13)
        time.sleep(0.6)
print("result")
"""


def test_a_run_shows_finished_phases_in_columns_and_the_time_that_is_left(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", RUN.replace("{", "{{").replace("}", "}}"))
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_terminal("bar", COLUMNS="100"))
    assert "about 1:40 left" in seen
    lines = [line for line in re.split(r"[\r\n]+", seen) if line.startswith("✓")]
    assert len(lines) == 2
    assert len({line.index(" s  ") for line in lines}) == 1  # one column
    assert any(
        "finding heads" in line and "8 heads seen, weakest head 2.1 times the noise" in line for line in lines
    )


def test_no_line_is_wider_than_a_narrow_terminal(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", RUN.replace("{", "{{").replace("}", "}}"))
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_terminal("bar", COLUMNS="80"))
    assert max(len(line) for line in re.split(r"[\r\n]+", seen)) <= 80


def test_a_run_that_takes_longer_than_planned_says_so():
    run = RunClock("recover", planned=0.0)
    assert run.left() == "1 s was planned"
    assert run.share == 0.99
    assert RunClock("train").share is None
    assert RunClock("train").left() == ""


def test_a_run_inside_a_run_belongs_to_the_outer_one():
    progress = Progress()
    with progress.run("leak", 2):
        outer = progress._run
        with progress.run("extract", 8):
            assert progress._run is outer
        assert progress._run is outer
    assert progress._run is None
