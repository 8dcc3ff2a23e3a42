"""A full disk at every write: the verdict is printed, nothing half-written stays, and a later run goes on to the same bytes."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnlearn._files
from attnlearn import AttentionLayer, data
from attnlearn._files import is_temporary
from attnlearn.cli.__main__ import main

OUTPUTS = {"-o": "found.safetensors", "--json": "result.json", "--report": "page.html"}


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    layer = AttentionLayer.random(1, 4, seed=4)
    layer.save(folder / "layer.safetensors")
    x = data.Gaussian(tokens=4, dim=4).sample(1500)
    np.savez(folder / "examples.npz", x=x, y=layer(x))
    np.savez(folder / "labelled.npz", x=x[:40, :, :2], y=np.where(x[:40, 0, 0] > 0, 1.0, -1.0))
    return folder


def command(verb: str, given: Path, folder: Path) -> list[str]:
    """The command with all its outputs in `folder`; it goes on from the checkpoint if there is one."""
    folder.mkdir(exist_ok=True)
    start = {
        "recover": [str(given / "examples.npz")],
        "extract": ["--oracle", str(given / "layer.safetensors"), "--dim", "4"],
        "train": [str(given / "labelled.npz"), "--heads", "1", "--max-steps", "3", "--step", "0.1"],
    }
    words = [verb, *start[verb], "--checkpoint", str(folder / "saved")]
    words += ["--cache", str(folder / "cache")] * (verb == "extract")
    for option, name in OUTPUTS.items():
        words += [option, str(folder / name)]
    return words + ["--resume"] * (folder / "saved" / "identity.json").exists()


def require_whole(folder: Path) -> None:
    """Every file is whole, and none is temporary."""
    assert not [path for path in folder.rglob("*") if is_temporary(path.name)]
    if (folder / "result.json").exists():
        json.loads((folder / "result.json").read_text())
    if (folder / "page.html").exists():
        assert (folder / "page.html").read_text().rstrip().endswith("</html>")


class FullAt:
    """The disk is full at one write and has space again afterwards."""

    def __init__(self, number: int) -> None:
        self.number, self.written, self.real = number, [], attnlearn._files.to_disk

    def __call__(self, path: Path) -> None:
        if path.is_file():
            self.written.append(path.name)
            if len(self.written) == self.number:
                raise OSError(errno.ENOSPC, "No space left on device")
        self.real(path)


def run(words: list[str], full: FullAt, monkeypatch) -> int:
    with monkeypatch.context() as patch:
        patch.setattr(attnlearn._files, "to_disk", full)
        return main(words)


@pytest.mark.filterwarnings("default::attnlearn.engine.CheckpointWarning")
@pytest.mark.parametrize("verb", ["recover", "train", pytest.param("extract", marks=pytest.mark.slow)])
def test_full_at_each_write_in_turn(verb, given, tmp_path, capsys, monkeypatch) -> None:
    watched = FullAt(0)
    ended = run(command(verb, given, tmp_path / "straight"), watched, monkeypatch)
    straight = (tmp_path / "straight" / "found.safetensors").read_bytes()
    assert ended in (0, 3)
    assert len(watched.written) > 5
    for number in range(1, len(watched.written) + 1):
        folder, full = tmp_path / str(number), FullAt(number)
        capsys.readouterr()
        code = run(command(verb, given, folder), full, monkeypatch)
        shown = capsys.readouterr()
        assert "No space left on device" in shown.err
        require_whole(folder)
        failed = full.written[number - 1]
        kept = {name for name in OUTPUTS.values() if (folder / name).exists()}
        if "identity.json" in failed:  # the very first write: refused before the work starts
            assert (code, kept) == (2, set())
            continue
        assert "layer    " in shown.out
        if re.match(r"\.[a-z]+-\d+\.safetensors\.", failed):  # a state: a warning, and a later run goes on
            assert (code, kept) == (ended, set(OUTPUTS.values()))
            assert main(command(verb, given, folder)) == ended
            assert (folder / "found.safetensors").read_bytes() == straight
        else:
            assert (code, len(kept)) == (2, len(OUTPUTS) - 1)


LIMITED = """
import json, sys
from pathlib import Path
from tests.cli.test_disk_full import run_limited

given, place = Path(sys.argv[1]), Path(sys.argv[2])
for limit in json.loads(sys.argv[3]):
    print(json.dumps(run_limited(given, place / str(limit), limit)), flush=True)
"""


def run_limited(given: Path, folder: Path, limit: int) -> dict:
    """`extract` while no file may grow beyond `limit` bytes, as the system sees to it; then without the limit."""
    import resource

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    words, shown = command("extract", given, folder), io.StringIO()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            code = main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    require_whole(folder)
    kept = [name for name in OUTPUTS.values() if (folder / name).exists()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        again = main(command("extract", given, folder))
    require_whole(folder)
    found = folder / "found.safetensors"
    return {
        "code": code,
        "kept": kept,
        "said": shown.getvalue(),
        "again": again,
        "found": found.read_bytes().hex() if found.exists() else None,
    }


def test_files_that_may_not_grow(given, tmp_path) -> None:
    """The system refuses the writes, those of the cache too; every run ends in one line and can be taken up again."""
    limits = [0, 9_000, 30_000, 1_000_000]
    words = [sys.executable, "-c", LIMITED, str(given), str(tmp_path), json.dumps(limits)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stderr
    runs = dict(zip(limits, map(json.loads, ended.stdout.splitlines()), strict=True))
    for limit, found in runs.items():
        assert "Traceback" not in found["said"]
        assert "Error" not in found["said"]  # an internal one would be named
        assert found["again"] == 0, limit
        assert found["found"] == runs[1_000_000]["found"]
    assert [found["code"] for found in runs.values()] == [2, 2, 2, 0]
    assert "answers are not kept" in runs[30_000]["said"]
    assert runs[30_000]["kept"] == ["found.safetensors", "result.json"]
