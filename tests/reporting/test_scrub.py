"""Nothing in a report names a person or a machine."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import pytest

from attnlearn import report
from attnlearn.reporting import scrub
from attnlearn.reporting._scrub import _own_homes, _own_names, command_line
from tests.reporting.conftest import made_up


@pytest.fixture
def ann(monkeypatch) -> None:
    """Ann's machine: her name and host are not words of mathematics."""
    monkeypatch.setattr(getpass, "getuser", lambda: "annlovelace")
    monkeypatch.setattr(socket, "gethostname", lambda: "difference-engine.example.org")
    monkeypatch.setenv("HOME", "/srv/people/annlovelace")
    _own_homes.cache_clear()
    _own_names.cache_clear()
    yield
    _own_homes.cache_clear()
    _own_names.cache_clear()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/srv/people/annlovelace/data/x.npz", "~/data/x.npz"),
        ("run by AnnLovelace on difference-engine", "run by user on host"),
        ("ssh annlovelace@difference-engine.example.org", "ssh user@host"),
        ("/home/bob/secret/layer", "~/secret/layer"),
        ("C:\\Users\\bob\\layer", "~\\layer"),
        ("/Users/bob", "~"),
        ("https://bob:hunter2@service.org/v1?api_key=abc&x=1", "https://service.org/v1?api_key=…&x=1"),
        ("root mean square of the host", "root mean square of the host"),
    ],
)
def test_names_are_taken_out(ann, text: str, clean: str) -> None:
    assert scrub(text) == clean
    assert scrub({text: [text, 1.0, None, True]}) == {clean: [clean, 1.0, None, True]}


def test_a_report_names_nobody(ann, tmp_path: Path) -> None:
    names = {"annlovelace", "difference-engine", "/srv/people", "hunter2", "bob"}
    solution = made_up(
        reason="/srv/people/annlovelace/run failed on difference-engine",
        oracle="https://annlovelace:hunter2@difference-engine.example.org/f",
        other="/home/bob/x",
    )
    document = solution.to_json()
    document["provenance"]["command"] = "attnlearn recover /srv/people/annlovelace/data"
    text = report(document, tmp_path / "report.html").read_text("utf-8").lower()
    assert not {name for name in names if name in text}


def test_commands_can_be_typed_again() -> None:
    words = [
        "extract",
        "--oracle",
        "process:python /deep/folder/serve.py",
        "--json=/a/b/c.json",
        "-o",
        "/x/my file",
    ]
    shown = command_line(words)
    assert shown == "attnlearn extract --oracle 'process:python …' --json=c.json -o 'my file'"


@pytest.mark.parametrize("words", [["--oracle"], ["--oracle="]])
def test_of_a_program_the_name_alone_is_shown(words) -> None:
    spec = "process:/opt/bin/serve.py --api-key=SEKRET123 --password SEKRET456 'SEKRET 789'"
    words = [*words[:-1], words[-1] + spec] if words[-1].endswith("=") else [*words, spec]
    shown = command_line(["extract", *words, "--dim", "4"])
    assert "SEKRET" not in shown
    assert "process:serve.py …" in shown


def test_the_command_line_leaves_its_command_in_the_result(ann, tmp_path: Path, capsys) -> None:
    from attnlearn import AttentionLayer
    from attnlearn.cli.__main__ import main

    AttentionLayer.random(2, 4, seed=1).save(tmp_path / "layer.safetensors")
    result, page = tmp_path / "result.json", tmp_path / "page.html"
    words = ["extract", "--oracle", str(tmp_path / "layer.safetensors"), "--dim", "4", "--quiet"]
    assert main([*words, "--json", str(result), "--report", str(page)]) == 0
    command = json.loads(result.read_text())["provenance"]["command"]
    assert command.startswith("attnlearn extract --oracle layer.safetensors --dim 4 --quiet")
    assert str(tmp_path) not in result.read_text() + page.read_text("utf-8")
    assert command in page.read_text("utf-8")


@pytest.mark.parametrize("name", ["layer", "stats", "theta", "root"])
def test_a_user_called_like_a_field_breaks_nothing(name: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: name)
    _own_names.cache_clear()
    try:
        text = report(made_up(), tmp_path / "report.html").read_text("utf-8")
    finally:
        _own_names.cache_clear()
    assert "All 3 heads" in text
