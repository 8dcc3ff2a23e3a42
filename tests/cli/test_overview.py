"""The text of `attnlearn --help` says what the commands say of themselves."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import attnlearn.cli
from attnlearn.cli.__main__ import main
from attnlearn.cli._app import app
from attnlearn.cli._overview import COMMANDS, OPTIONS, overview


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_has_the_first_sentence_of_every_command(name: str) -> None:
    command = getattr(importlib.import_module(f"attnlearn.cli._{name}"), name)
    assert (inspect.getdoc(command) or "").split("\n\n")[0] == COMMANDS[name]


def test_every_command_is_in_the_overview() -> None:
    assert {name for name in app if not name.startswith("-")} == set(COMMANDS)
    folder = Path(attnlearn.cli.__file__).parent
    public = {
        path.stem[1:]
        for path in folder.glob("_[a-z]*.py")
        if f"\ndef {path.stem[1:]}(" in path.read_text("utf-8")
    }
    assert public - {"overview"} == set(COMMANDS)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = overview(width)
    assert max(map(len, text.splitlines())) <= width
    assert all(f"  {name} " in text for name in (*COMMANDS, *OPTIONS))


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_is_asked_for_in_three_ways(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Usage: attnlearn COMMAND\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: attnlearn {name} ")


def test_a_reader_that_goes_away_is_no_error() -> None:
    words = f"{sys.executable} -m attnlearn.cli.__main__ --help | head -c 5; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Usage", "")
