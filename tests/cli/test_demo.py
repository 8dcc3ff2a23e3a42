"""`attnlearn demo`, `python -m attnlearn`, help with examples, oracles that are functions, and what to do next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnlearn import AttentionLayer
from attnlearn.cli.__main__ import main
from attnlearn.cli._app import app
from attnlearn.cli._overview import COMMANDS, EXAMPLES


def test_the_demo_writes_a_report_with_the_truth_beside_it(tmp_path: Path, capsys) -> None:
    AttentionLayer.random(2, 6, bias=True, seed=1).save(tmp_path / "layer.safetensors")
    assert main(["demo", str(tmp_path / "out"), "--layer", str(tmp_path / "layer.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "Its weights are hidden" in out
    assert "RECOVERED (certified)" in out
    page = tmp_path / "out" / "report.html"
    assert out.splitlines()[-2] == page.resolve().as_uri()
    assert "Found against true" in page.read_text("utf-8")


def test_the_package_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "attnlearn", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.count(".") == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_the_command_understands(name: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    for example in EXAMPLES[name]:
        assert f"  {example}\n" in out
        command, bound, *_ = app.parse_args(example.split()[1:], exit_on_error=False, print_error=False)
        assert command.__name__ == name
        assert bound is not None


def test_completion_knows_commands_and_options() -> None:
    for shell in ("bash", "zsh", "fish"):
        text = app.generate_completion(shell=shell)
        assert "recover" in text
        assert "time-limit" in text


SERVICE = """
import json
import numpy as np
W = np.linspace(-1, 1, 9).reshape(3, 3)
def attention(x):  # a service that speaks JSON: x -> JSON -> answer -> array
    question = json.loads(json.dumps(x.tolist()))
    x = np.array(question)
    scores = x @ W @ np.swapaxes(x, 1, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ x
attention.dim = 3
"""


def test_a_function_in_a_file_is_an_oracle_and_tells_its_dimension(tmp_path: Path, capsys) -> None:
    (tmp_path / "service_for_test.py").write_text(SERVICE)
    oracle = f"{tmp_path / 'service_for_test.py'}:attention"
    assert main(["extract", "--oracle", oracle, "-o", str(tmp_path / "l.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "queries  " in out
    assert "next     attnlearn inspect" in out
    assert main(["extract", "--oracle", f"{tmp_path / 'nowhere.py'}:attention"]) == 2
    assert "oracle: must name a function that can be imported" in capsys.readouterr().err


def test_a_run_that_was_stopped_says_how_to_go_on(tmp_path: Path, capsys) -> None:
    AttentionLayer.random(2, 6, seed=1).save(tmp_path / "l.safetensors")
    words = ["extract", "--oracle", str(tmp_path / "l.safetensors"), "--time-limit", "1e-6"]
    assert main(words) == 3
    assert "next     give --checkpoint DIR next time" in capsys.readouterr().out
    assert main([*words, "--checkpoint", str(tmp_path / "run")]) == 3
    assert "next     the same command with --resume goes on from here" in capsys.readouterr().out
