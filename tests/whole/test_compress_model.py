"""Whole models made smaller: later blocks see the smaller ones before them, and the weights load back into the model's class."""

from __future__ import annotations

import json

import pytest

from attnlearn._storage import load_support
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
    assert 0 < whole.effect.difference < 0.5
    assert 0.5 < whole.effect.cosine < 1
    assert whole.effect.divergence is None
    assert (outputs_of(model, batches[-1:]) == before).all()

    from safetensors.torch import load_file

    again, _ = made()
    again.load_state_dict(load_file(tmp_path / "out" / "weights.safetensors"))
    after = outputs_of(again, batches[-1:])
    moved = float(((after - before) ** 2).sum() ** 0.5 / (before**2).sum() ** 0.5)
    assert moved == pytest.approx(whole.effect.difference, rel=1e-6)

    # Nothing is fitted again when the results are there.
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("result.json")}
    assert compress_model(model, batches, tmp_path / "out", head_dim=2).effect == whole.effect
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


def test_the_effect_on_logits_is_a_divergence(tmp_path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=30, initializer_range=0.5, **sizes)
    model = transformers.BertForMaskedLM(config).eval()
    batches = [{"input_ids": torch.randint(0, 30, (60, 6))} for _ in range(5)]
    whole = compress_model(model, batches, tmp_path / "out", kv_heads=1)
    assert whole.effect.cosine is None
    assert 0 < whole.effect.divergence < 1
    assert "nats on average" in whole.sentence
    assert load_support(tmp_path / "out" / "bert.encoder.layer.0.attention" / "layer.safetensors") is not None

    from safetensors.torch import load_file

    again = transformers.BertForMaskedLM(config).eval()
    again.load_state_dict(load_file(tmp_path / "out" / "weights.safetensors"))
    with torch.no_grad():
        before, after = (one(**batches[-1]).logits.log_softmax(-1) for one in (model, again))
    wanted = float((before.exp() * (before - after)).sum(-1).mean())
    assert whole.effect.divergence == pytest.approx(wanted, rel=1e-3)
