"""Whole models: blocks put back give the model's own outputs, and a run over all blocks can be resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attnlearn.cli.__main__ import main
from attnlearn.convert import from_torch
from attnlearn.whole import outputs_of, recover_model, with_blocks

torch = pytest.importorskip("torch", reason="torch is not installed")

MODEL = """
import torch


def make():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(6, 2, 12, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval().double()
    with torch.no_grad():
        for part in model.layers:
            part.self_attn.in_proj_weight.mul_(3.0)
    return model, [torch.randn(150, 5, 6, dtype=torch.float64) for _ in range(11)]
"""


def made():
    space: dict = {}
    exec(MODEL, space)
    return space["make"]()


@pytest.mark.parametrize("batch_first", [True, False])
def test_blocks_put_back_give_the_same_outputs_and_leave_the_model_as_it_was(batch_first):
    torch.manual_seed(1)
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, dropout=0.0).eval()
    x = [torch.randn(4, 5, 8)]
    before, layer = outputs_of(model, x), from_torch(model.self_attn)
    with with_blocks(model, {"self_attn": layer}):
        same = outputs_of(model, x)
    with with_blocks(model, {"self_attn": layer.replace(w=2 * layer.w)}):
        other = outputs_of(model, x)
    assert same == pytest.approx(before, abs=1e-5)
    assert np.abs(other - before).max() > 1e-3
    assert (outputs_of(model, x) == before).all()
    with (
        pytest.raises(ValueError, match="layers: must name attention blocks"),
        with_blocks(model, {"no": layer}),
    ):
        pass


def test_every_block_is_recovered_put_back_and_kept(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MODEL)
    command = [
        "recover",
        f"{tmp_path}/model.py:make",
        "--layers",
        "all",
        "-o",
        str(tmp_path / "out"),
        "--quiet",
    ]
    code = main([*command, "--json", str(tmp_path / "table.json")])
    document = json.loads((tmp_path / "table.json").read_text())
    assert code == (0 if document["achieved"] else 3)
    assert [block["name"] for block in document["blocks"]] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert document["put_back"] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert document["difference"] < 1e-3
    page = (tmp_path / "out" / "index.html").read_text()
    assert "layers.1.self_attn/report.html" in page
    assert (tmp_path / "out" / "layers.1.self_attn" / "report.html").exists()
    again = recover_model(*made(), tmp_path / "out")  # nothing is recovered twice
    assert again.difference == pytest.approx(document["difference"], rel=1e-6)
    assert again.blocks[0].seconds == document["blocks"][0]["seconds"]


def test_what_cannot_be_run_is_one_line(tmp_path):
    model, batches = made()
    with pytest.raises(ValueError, match="layers: must be all or names"):
        recover_model(model, batches, tmp_path / "out", layers=["no"])
    with pytest.raises(ValueError, match="batches: must hold at least two"):
        recover_model(model, batches[:1], tmp_path / "out")
    assert not (tmp_path / "out").exists()
