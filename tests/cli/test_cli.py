"""The command line: what it prints, the exit code of every kind of mistake, and that nothing half-written stays."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, Solution, data, distance, load
from attnlearn._serialize import schema
from attnlearn.cli.__main__ import main
from attnlearn.cli._console import Console


@pytest.fixture
def layer_file(tmp_path: Path) -> Path:
    AttentionLayer.random(2, 6, rank=3, bias=True, seed=4).save(tmp_path / "layer.safetensors")
    return tmp_path / "layer.safetensors"


def test_inspect_a_real_layer(layers, capsys) -> None:
    assert main(["inspect", str(layers / "sapiens-vh-layer0.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "8 heads, tokens of dimension 128" in out
    assert len(out.splitlines()) == 11


def test_json_alone_on_standard_output(layer_file, capsys) -> None:
    assert main(["inspect", str(layer_file), "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["num_heads"] == 2
    assert "2 heads" in captured.err


def test_sample_writes_what_the_layer_says(layer_file, tmp_path, capsys) -> None:
    folder = tmp_path / "data"
    assert main(["sample", str(layer_file), str(folder), "--num", "50", "--tokens", "4", "--seed", "7"]) == 0
    recorded = data.Recorded(folder)
    x, y, _ = recorded.take(np.arange(50))
    np.testing.assert_allclose(load(layer_file)(np.asarray(x)), y, atol=1e-12)
    np.testing.assert_array_equal(x, data.Gaussian(4, 6).sample(50, seed=7))


@pytest.mark.parametrize("layout", ["attnlearn", "qkvo", "torch", "bert", "out_proj"])
def test_convert_round_trips(layout: str, tmp_path, layers) -> None:
    source = layers / "sapiens-vh-layer3.safetensors"
    target = tmp_path / "out.safetensors"
    assert main(["convert", str(source), str(target), "--to", layout]) == 0
    assert distance(load(target, num_heads=8), load(source)).max < 1e-5


def test_doctor_is_well(capsys) -> None:
    assert main(["doctor", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"]


FACTORY = """
import torch
def make():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), [torch.randn(10, 5, 8)]
"""


def test_record_lists_and_records(tmp_path, capsys) -> None:
    pytest.importorskip("torch", reason="the extra [torch] is not installed")
    (tmp_path / "factory_for_test.py").write_text(FACTORY)
    spec = f"{tmp_path / 'factory_for_test.py'}:make"
    assert main(["record", spec]) == 0
    assert "layers.1.self_attn" in capsys.readouterr().out
    assert main(["record", spec, "layers.1.self_attn", str(tmp_path / "data")]) == 0
    assert len(data.Recorded(tmp_path / "data")) == 10


def broken_files(tmp_path: Path) -> dict[str, Path]:
    files = {name: tmp_path / f"{name}.safetensors" for name in ("empty", "garbage", "truncated", "lying")}
    files["empty"].write_bytes(b"")
    files["garbage"].write_bytes(b"not a safetensors file at all")
    AttentionLayer.random(2, 6).save(tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    files["truncated"].write_bytes(whole[:-100])
    files["lying"].write_bytes((2**62).to_bytes(8, "little") + whole[8:])
    files["missing"] = tmp_path / "nowhere.safetensors"
    files["directory"] = tmp_path
    return files


@pytest.mark.parametrize("kind", ["empty", "garbage", "truncated", "lying", "missing", "directory"])
def test_broken_files_are_one_line_and_exit_2(kind: str, tmp_path, capsys) -> None:
    assert main(["inspect", str(broken_files(tmp_path)[kind])]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("attnlearn: path: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "nonsense"),
        (["inspect"], "LAYER"),
        (["sample", "LAYER", "OUT", "--num", "0"], "num: must be at least 1, got 0"),
        (["sample", "LAYER", "OUT", "--num", "many"], "num"),
        (["sample", "LAYER", "OUT", "--noise", "-1"], "noise: must be at least 0, got -1"),
        (["sample", "LAYER", "OUT", "--tokens", "0"], "tokens: "),
        (["convert", "LAYER", "OUT", "--to", "paper"], "layout: "),
        (["convert", "LAYER", "OUT", "--to", "torch"], "layer: must have heads of rank at most"),
        (["convert", "LAYER", "/proc/no/such/folder/x"], "cannot write"),
        (["record", "nowhere:make"], "factory: must name a function"),
        (["record", "nocolon"], "factory: must look like"),
    ],
)
def test_mistakes_are_one_line_exit_2_and_leave_nothing(
    arguments, message, layer_file, tmp_path, capsys
) -> None:
    before = sorted(tmp_path.iterdir())
    filled = [{"LAYER": str(layer_file), "OUT": str(tmp_path / "out")}.get(word, word) for word in arguments]
    assert main(filled) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_recover_writes_layer_and_valid_json(layer_file, tmp_path, capsys) -> None:
    folder, out, result = tmp_path / "data", tmp_path / "found.safetensors", tmp_path / "result.json"
    assert main(["sample", str(layer_file), str(folder), "--num", "3000", "--tokens", "4"]) == 0
    capsys.readouterr()
    assert main(["recover", str(folder), "-o", str(out), "--json", str(result)]) == 0
    captured = capsys.readouterr()
    assert "RECOVERED (certified)" in captured.out
    assert "\x1b" not in captured.out + captured.err
    assert distance(load(out), load(layer_file)).max < 1e-8
    document = json.loads(result.read_text())
    jsonschema.validate(document, schema())
    assert document["certified"]
    assert str(tmp_path) not in result.read_text()


def test_recover_that_is_not_certified_exits_3_and_writes_the_result(layer_file, tmp_path, capsys) -> None:
    folder, result = tmp_path / "data", tmp_path / "result.json"
    assert (
        main(["sample", str(layer_file), str(folder), "--num", "3000", "--tokens", "4", "--noise", "0.01"])
        == 0
    )
    capsys.readouterr()
    asked = ["recover", str(folder), "--json", str(result), "--quiet"]
    assert main([*asked, "--accuracy", "1e-6"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(
        "attnlearn: BELOW_NOISE_FLOOR: A layer with 2 heads was fitted, but it is not certified: "
    )
    document = json.loads(result.read_text())
    jsonschema.validate(document, schema())
    assert document["outcome"] == "BELOW_NOISE_FLOOR"
    assert main(["recover", str(folder), "--target", "0.2", "--json", str(result), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    document = json.loads(result.read_text())
    assert (document["outcome"], document["achieved"], document["certified"]) == ("ON_TARGET", True, False)
    assert main(["recover", str(folder), "--time-limit", "1e-9", "-q"]) == 3
    assert "the time limit of 1e-09 s is up" in capsys.readouterr().err


def test_extract_from_a_layer_file(layer_file, tmp_path, capsys) -> None:
    out = tmp_path / "found.safetensors"
    assert main(["extract", "--oracle", str(layer_file), "-o", str(out), "--quiet"]) == 0
    assert distance(load(out), load(layer_file)).max < 1e-8
    assert main(["extract", "--oracle", "gopher://x", "--dim", "6"]) == 2
    assert "oracle: must be" in capsys.readouterr().err


def test_extract_from_a_dead_oracle_exits_4(tmp_path, capsys) -> None:
    for words in (["--dim", "6"], []):
        assert main(["extract", "--oracle", "process:false", *words, "--quiet"]) == 4
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("attnlearn: ORACLE_FAILED: No layer was learned: the oracle stopped answering")


@pytest.mark.parametrize("command", ["recover", "extract", "compress", "train"])
def test_every_long_command_has_a_target_and_a_time_limit(command: str, capsys) -> None:
    assert main([command, "--help"]) == 0
    told = capsys.readouterr().out
    assert "--target" in told
    assert "--time-limit" in told
    assert "--checkpoint" in told


def test_train_writes_a_classifier(tmp_path, capsys) -> None:
    x, y = data.TokenizedMixture(tokens=4, dim=6).sample(40, seed=0)
    np.savez(tmp_path / "labelled.npz", x=x, y=y)
    arguments = ["train", str(tmp_path / "labelled.npz"), "--heads", "4", "--max-steps", "50"]
    assert main([*arguments, "-o", str(tmp_path / "model.safetensors"), "--json", "-", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema())
    assert document["outcome"] == "TRAINED"
    assert main([*arguments, "--step", "huge"]) == 2
    assert "step: must be a number, auto or theory, got 'huge'" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
    ids=["terminal", "NO_COLOR", "dumb", "piped"],
)
def test_colours_only_where_they_are_wanted(stream, environment, coloured: bool, monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    console = Console()
    console.stream = stream
    console.solution(Solution.failed(Outcome.SATURATED))
    assert ("\x1b[" in stream.getvalue()) == coloured
    assert "SATURATED (not certified):" in stream.getvalue()


def test_quiet_prints_nothing(layer_file, tmp_path, capsys) -> None:
    report = tmp_path / "report.html"
    words = ["extract", "--oracle", str(layer_file), "--dim", "6", "--quiet", "--report", str(report)]
    assert main(words) == 0
    assert capsys.readouterr() == ("", "")
    assert report.is_file()


def test_sample_multiplies_stored_weights_in_the_wanted_precision(layers, tmp_path) -> None:
    """Products made in float32 would have no exact rank, and recovery of them no certificate."""
    source = layers / "sapiens-vh-layer0.safetensors"
    assert main(["sample", str(source), str(tmp_path / "data"), "--num", "5"]) == 0
    x, y, _ = data.Recorded(tmp_path / "data").take(np.arange(5))
    exact, hasty = (
        load(source, dtype=np.float64)(np.asarray(x)),
        load(source).astype(np.float64)(np.asarray(x)),
    )
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-13)
    assert np.abs(hasty - exact).max() > 1e-10
