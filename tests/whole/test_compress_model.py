"""Whole models made smaller: later blocks see the smaller ones before them, and the weights load back into the model's class."""

from __future__ import annotations

import json

import pytest

from attnlearn.cli.__main__ import main
from attnlearn.engine import CheckpointError
from attnlearn.whole import compress_model, outputs_of
from tests.whole.test_recover_model import MODEL, made

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_every_block_is_made_smaller_and_loads_back(tmp_path) -> None:
    model, batches = made()
    before = outputs_of(model, batches[-1:])
    whole = compress_model(model, batches, tmp_path / "out", head_dim=2)
    assert whole.achieved
    assert [block.kv_floats for block in whole.blocks] == [8, 8]
    assert all(block.written for block in whole.blocks)
    assert 0 < whole.difference < 0.5
    assert (outputs_of(model, batches[-1:]) == before).all()

    from safetensors.torch import load_file

    again, _ = made()
    again.load_state_dict(load_file(tmp_path / "out" / "weights.safetensors"))
    after = outputs_of(again, batches[-1:])
    moved = float(((after - before) ** 2).sum() ** 0.5 / (before**2).sum() ** 0.5)
    assert moved == pytest.approx(whole.difference, rel=1e-6)

    # Nothing is fitted again when the results are there.
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("result.json")}
    assert compress_model(model, batches, tmp_path / "out", head_dim=2).difference == whole.difference
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("result.json")}


def test_a_folder_of_another_run_is_refused(tmp_path) -> None:
    model, batches = made()
    compress_model(model, batches, tmp_path, head_dim=2)
    with pytest.raises(CheckpointError, match="head_dim"):
        compress_model(model, batches, tmp_path, head_dim=1)
    with pytest.raises(CheckpointError, match="batches"):
        compress_model(model, batches[1:], tmp_path, head_dim=2)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(CheckpointError, match="weights"):
        compress_model(model, batches, tmp_path, head_dim=2)


def test_the_command_takes_a_model(tmp_path, capsys) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = [
        "compress",
        f"{tmp_path / 'model.py'}:make",
        "--kv-heads",
        "1",
        "-o",
        str(tmp_path / "out"),
        "--quiet",
    ]
    assert main(command) == 0
    document = json.loads((tmp_path / "out" / "model.json").read_text())
    assert [block["outcome"] for block in document["blocks"]] == ["COMPRESSED", "COMPRESSED"]
    assert main(["compress", f"{tmp_path / 'model.py'}:make", "--kv-heads", "1"]) == 2
    assert "output: must name a folder" in capsys.readouterr().err
