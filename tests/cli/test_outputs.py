"""Outputs of a command: refused before the work, written to what exists, and never lost because another one failed."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import attnlearn
from attnlearn import AttentionLayer, Outcome, Solution, data, load
from attnlearn._files import CannotWrite
from attnlearn.cli.__main__ import main
from attnlearn.engine import CheckpointWarning


@pytest.fixture
def layer_file(tmp_path: Path) -> Path:
    AttentionLayer.random(2, 6, rank=3, seed=4).save(tmp_path / "layer.safetensors")
    return tmp_path / "layer.safetensors"


def extract(layer_file: Path, *more: str) -> list[str]:
    return ["extract", "--oracle", str(layer_file), "--dim", "6", *more]


@pytest.fixture
def idle(monkeypatch):
    """Every verb fails the test when its work starts."""

    def work(*_, **__):
        pytest.fail("the work started")

    for name in ("recover", "extract", "compress", "conditions", "load"):
        monkeypatch.setattr(attnlearn, name, work)
    monkeypatch.setattr("attnlearn.training._command.train_file", work)
    monkeypatch.setattr("attnlearn.extraction.leak", work)
    for name in ("learning", "hardness", "optimization"):
        monkeypatch.setattr(f"attnlearn.reproduce.{name}", work)


COMMANDS = {
    "recover": ["recover", "DATA"],
    "extract": ["extract", "--oracle", "LAYER", "--dim", "6"],
    "train": ["train", "DATA"],
    "compress": ["compress", "LAYER", "DATA", "--heads", "1"],
    "leak": ["leak", "--oracle", "LAYER", "--dim", "6"],
    "reproduce": ["reproduce", "learning"],
    "conditions": ["conditions", "LAYER"],
    "inspect": ["inspect", "LAYER"],
}


def words(command: str, layer_file: Path, *more: str) -> list[str]:
    names = {"LAYER": str(layer_file), "DATA": str(layer_file.with_name("data.npz"))}
    return [names.get(word, word) for word in COMMANDS[command]] + list(more)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(
            (command, option)
            for command in ("recover", "extract", "train", "compress")
            for option in ("-o", "--json")
        ),
        *((command, "--json") for command in ("leak", "reproduce", "conditions", "inspect")),
        *((command, "--report") for command in ("recover", "leak", "reproduce", "conditions")),
        *((command, "--plot") for command in ("leak", "reproduce")),
        *((command, "--checkpoint") for command in ("recover", "train", "reproduce")),
    ],
)
@pytest.mark.parametrize("place", ["missing", "folder"])
def test_a_path_that_cannot_be_written_is_refused_first(
    command, option, place, layer_file, tmp_path, capsys
) -> None:
    name = {"-o": "output"}.get(option, option.lstrip("-"))
    target = tmp_path / "missing" / "x.png" if place == "missing" else tmp_path
    if option == "--checkpoint":
        (tmp_path / "file").write_text("")
        target = tmp_path / "file" if place == "folder" else tmp_path / "file" / "below"
    before = sorted(tmp_path.iterdir())
    assert main(words(command, layer_file, option, str(target))) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"attnlearn: {name}: ")
    assert len(captured.err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("command", ["leak", "reproduce"])
def test_a_picture_needs_its_package_and_its_ending_first(
    command, layer_file, tmp_path, capsys, monkeypatch
) -> None:
    assert main(words(command, layer_file, "--plot", str(tmp_path / "curve.txt"))) == 2
    assert "plot: must end in .png, .pdf, .svg" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(words(command, layer_file, "--plot", str(tmp_path / "curve.png"))) == 2
    assert (
        "plot: needs matplotlib, which is not installed (pip install 'attnlearn[report]')"
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("idle")
def test_two_results_need_two_files(layer_file, tmp_path, capsys) -> None:
    same = str(tmp_path / "result")
    assert main(words("recover", layer_file, "-o", same, "--json", same)) == 2
    assert "json: must not be the file of --output" in capsys.readouterr().err


@pytest.mark.parametrize("fails", ["layer", "json", "report"])
def test_one_failed_write_loses_nothing_else(fails, layer_file, tmp_path, capsys, monkeypatch) -> None:
    places = {
        "layer": tmp_path / "found.safetensors",
        "json": tmp_path / "r.json",
        "report": tmp_path / "r.html",
    }
    real = os.replace

    def full(source, target):
        if Path(target) == places[fails]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    options = ["-o", str(places["layer"]), "--json", str(places["json"]), "--report", str(places["report"])]
    assert main(extract(layer_file, *options)) == 2
    captured = capsys.readouterr()
    assert "RECOVERED (certified)" in captured.out
    assert captured.err.splitlines()[-1].endswith(f"cannot write {places[fails]} (No space left on device)")
    assert [name for name, path in places.items() if not path.exists()] == [fails]
    assert not list(tmp_path.glob(".*.tmp"))
    if fails == "layer":
        assert json.loads(places["json"].read_text())["layer"]["path"] is None


def test_a_failed_picture_loses_no_queries(layer_file, tmp_path, capsys, monkeypatch) -> None:
    from attnlearn.extraction import Leak

    monkeypatch.setattr(Leak, "plot", lambda self: 1 / 0)
    result = tmp_path / "leak.json"
    options = ["--plot", str(tmp_path / "curve.png"), "--json", str(result)]
    assert main(["leak", "--oracle", str(layer_file), "--dim", "6", *options]) == 1
    assert json.loads(result.read_text())["rows"]
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["-o", "--json", "--report"])
def test_a_pipe_is_written_to_and_stays_a_pipe(option, layer_file, tmp_path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    assert main(extract(layer_file, option, str(pipe), "--quiet")) == 0
    reader.join(30)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert len(received[0]) > 500


def test_a_device_is_written_to_and_stays_a_device(layer_file, tmp_path) -> None:
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"no device can be made here ({error.strerror})")
    assert main(extract(layer_file, "--json", str(node), "-o", str(node), "--quiet")) == 0
    assert stat.S_ISCHR(node.stat().st_mode)


def test_an_open_file_of_the_process_is_written_through(layer_file, tmp_path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as handle:
        options = ["--json", f"/dev/fd/{handle.fileno()}", "--quiet"]
        assert main(extract(layer_file, *options)) == 0
    assert json.loads(log.read_text())["certified"]


def test_the_same_run_gives_the_same_file(layer_file, tmp_path) -> None:
    hashes = set()
    for number in range(3):
        out, result = tmp_path / "found.safetensors", tmp_path / f"{number}.json"
        assert main(extract(layer_file, "-o", str(out), "--json", str(result), "--quiet")) == 0
        hashes.add(json.loads(result.read_text())["layer"]["sha256"])
    assert len(hashes) == 1
    assert load(out).num_heads == 2


def test_a_checkpoint_that_cannot_be_written_is_a_warning_in_one_line(
    layer_file, tmp_path, capsys, monkeypatch
) -> None:
    def full(path, tensors, metadata):
        raise CannotWrite(path, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr("attnlearn.engine._checkpoint.write_tensors", full)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [("default", None, CheckpointWarning, None, 0)])
        assert main(extract(layer_file, "--checkpoint", str(tmp_path / "saved"))) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert lines
    assert all(line.startswith("attnlearn: warning: no checkpoint after ") for line in lines)


def test_what_an_interrupted_run_has_is_written(layer_file, tmp_path, monkeypatch, capsys) -> None:
    def interrupted(*_, **__):
        interrupt = KeyboardInterrupt()
        interrupt.solution = Solution(load(layer_file), Outcome.INTERRUPTED)
        raise interrupt

    monkeypatch.setattr(attnlearn, "extract", interrupted)
    out, result = tmp_path / "found.safetensors", tmp_path / "r.json"
    assert main(extract(layer_file, "-o", str(out), "--json", str(result))) == 130
    assert json.loads(result.read_text())["outcome"] == "INTERRUPTED"
    assert load(out) == load(layer_file)


@pytest.mark.parametrize("presses", [1, 2, 3])
def test_ctrl_c_exits_130_without_a_traceback(presses, tmp_path) -> None:
    layer = AttentionLayer.random(4, 16, seed=1)
    x = data.Gaussian(tokens=8, dim=16).sample(20_000)
    np.savez(tmp_path / "data.npz", x=x, y=layer(x))
    command = [sys.executable, "-m", "attnlearn.cli", "recover", str(tmp_path / "data.npz")]
    process = subprocess.Popen(
        [*command, "--checkpoint", str(tmp_path / "saved")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list((tmp_path / "saved").glob("state-*")):
        assert process.poll() is None
        time.sleep(0.01)
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "KeyboardInterrupt" not in errors
    if presses == 1:
        assert "INTERRUPTED" in output
