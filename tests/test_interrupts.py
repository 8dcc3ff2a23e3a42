"""Ctrl-C while modules in C++ are imported: it waits, takes effect, and leaves nothing half-imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

from attnlearn._interrupts import deferred_interrupts
from benchmarks import kills

PRESSED = """
import signal, sys

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("jaxlib"):
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Pressed())
"""
"""Ctrl-C at every module of jaxlib that is looked for."""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", PRESSED + code], capture_output=True, text=True, timeout=120)


def test_ctrl_c_waits_until_jax_is_imported_whole() -> None:
    ended = run(
        "import attnlearn\n"
        "try:\n"
        "    attnlearn.train\n"
        "except KeyboardInterrupt:\n"
        "    sys.meta_path.pop(0)\n"
        "    print('interrupted', 'jax.numpy' in sys.modules, attnlearn.AttentionLayer.random(1, 2).dim)\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted True 2\n", "")


def test_the_command_line_ends_with_130(tmp_path) -> None:
    ended = run(
        f"sys.argv[1:] = ['train', {str(tmp_path / 'examples.npz')!r}]\n"
        "from attnlearn.cli.__main__ import run\n"
        "run()\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "attnlearn: interrupted\n")


IDLE = """
import attnlearn.cli.__main__ as cli
from attnlearn.engine import Engine

def main():
    Engine.parse(2).map(abs, [-1, 2, -3])
    raise KeyboardInterrupt

cli.main = main
cli.run()
"""


def test_workers_that_wait_for_a_task_are_not_waited_for() -> None:
    words = [sys.executable, "-c", IDLE]
    mark = uuid.uuid4().hex
    environment = os.environ | {kills.MARK: mark}
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert (ended.returncode, ended.stderr) == (130, "")
    ends = time.monotonic() + 10
    while kills.marked(mark) and time.monotonic() < ends:
        time.sleep(0.05)
    assert kills.marked(mark) == []


def test_ctrl_c_takes_effect_once_at_the_end_of_the_block() -> None:
    heard, steps = [], []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        mine = signal.getsignal(signal.SIGINT)
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            steps.append(len(heard))
        assert (steps, heard) == ([0], [1])
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_inside_the_block_gives_way_to_ctrl_c() -> None:
    @deferred_interrupts()
    def half_imported() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ImportError

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            half_imported()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_handler_that_is_none_of_pythons_stays(handler) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with deferred_interrupts():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_let_alone() -> None:
    seen = []

    def work() -> None:
        with deferred_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
