"""`attnlearn compress`: a file in the source's layout, the curve as a table, refusals before the work."""

from __future__ import annotations

import json

import jsonschema
import pytest

from attnlearn import AttentionLayer, load
from attnlearn._serialize import schema
from attnlearn.cli.__main__ import main
from attnlearn.convert import layout_of, save_layout


@pytest.fixture
def source(tmp_path):
    layer = AttentionLayer.random(4, 8, rank=2, seed=1)
    w = layer.w.copy()
    w[2:] = 0  # two heads say it all
    path = tmp_path / "layer.safetensors"
    save_layout(layer.replace(w=w), path, layout="bert", prefix="encoder.attention.")
    assert main(["sample", str(path), str(tmp_path / "data"), "--num", "400", "--tokens", "4"]) == 0
    return path


def test_the_output_has_the_layout_of_the_source(source, tmp_path, capsys) -> None:
    out = tmp_path / "small.safetensors"
    arguments = ["compress", str(source), str(tmp_path / "data"), "--heads", "2", "-o", str(out)]
    assert main([*arguments, "--json", str(tmp_path / "result.json")]) == 0
    assert layout_of(out) == ("bert", "encoder.attention.")
    assert load(out).num_heads == 2
    shown = capsys.readouterr().out
    assert "COMPRESSED (certified)" in shown
    assert len([line for line in shown.splitlines() if line.split()[:1] in (["4"], ["2"])]) == 2
    document = json.loads((tmp_path / "result.json").read_text())
    jsonschema.validate(document, schema())
    assert [row["heads"] for row in document["stats"]["curve"]] == [4, 2]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--heads", "3"], "heads: must divide the dimension 8 in the layout bert"),
        (["--heads", "2", "--head-dim", "5"], "head_dim: must be at most dim / heads = 4"),
        (["--heads", "2", "--to", "paper"], "to: must be one of attnlearn, qkvo"),
        (["--heads", "9", "--to", "qkvo"], "num_heads: must lie between 1 and the layer's 4, got 9"),
    ],
)
def test_refusals_are_one_line(source, tmp_path, capsys, extra, message) -> None:
    capsys.readouterr()
    assert main(["compress", str(source), str(tmp_path / "data"), *extra]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
