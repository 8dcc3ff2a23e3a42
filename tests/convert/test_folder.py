"""Saved models: a folder or its file, whole or in pieces, with positions or without; what is missing is said in one line."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import attnlearn
from attnlearn.convert import from_huggingface
from tests.convert.models import ROWS, build

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
FEW = [
    "llama, biases, llama3 scaling",
    "qwen2, window",
    "qwen3",
    "gemma2",
    "gpt-oss",
    "gpt-neox",
    "modernbert",
    "t5",
    "bloom",
]


def saved(row, folder, seed=0, **options):
    model = build(row, seed)
    model.save_pretrained(folder, **options)
    return model


@pytest.fixture
def llama(tmp_path, seed):
    return saved(ROWS["llama"], tmp_path / "llama", seed), tmp_path / "llama"


@pytest.mark.parametrize("name", FEW)
def test_a_saved_model_is_read_as_the_model_is(name, seed, tmp_path):
    row = ROWS[name]
    model = saved(row, tmp_path, seed)
    assert attnlearn.load(tmp_path, prefix=row.block) == from_huggingface(model, prefix=row.block)


def test_pieces_with_an_index_are_one_model(seed, tmp_path):
    row = ROWS["llama"]
    model = saved(row, tmp_path, seed, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert attnlearn.load(tmp_path, prefix=row.block) == from_huggingface(model, prefix=row.block)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(ValueError, match="path: must have an index that names a file of the folder"):
        attnlearn.load(tmp_path, prefix=row.block)


def test_a_model_without_positions_is_read_from_its_folder(tmp_path):
    sizes = {
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 16,
        "vocab_size": 20,
    }
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    model.save_pretrained(tmp_path)
    wanted = from_huggingface(model, prefix="encoder.layer.1")
    assert attnlearn.load(tmp_path, prefix="encoder.layer.1") == wanted
    assert attnlearn.load(tmp_path / "model.safetensors", prefix="encoder.layer.1") == wanted


def test_the_file_beside_its_configuration_is_enough(llama):
    model, folder = llama
    wanted = from_huggingface(model, prefix="layers.0.self_attn")
    assert attnlearn.load(folder / "model.safetensors", prefix="layers.0.self_attn") == wanted
    wide = attnlearn.load(folder, prefix="layers.0.self_attn", dtype=np.float64)
    assert wide.dtype == np.float64


def test_a_model_with_a_head_and_its_base_are_one(tmp_path, seed):
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**ROWS["llama"].config)).eval()
    model.save_pretrained(tmp_path)
    wanted = from_huggingface(model, prefix="model.layers.1.self_attn")
    assert attnlearn.load(tmp_path, prefix="model.layers.1.self_attn") == wanted
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaModel"]}))
    assert attnlearn.load(tmp_path, prefix="layers.1.self_attn") == wanted


def test_what_is_missing_is_said_in_one_line(llama, tmp_path):
    _, folder = llama
    refusals = {
        "prefix: must name one attention block .layers.0.self_attn, layers.1": {},
        r"prefix: must name an attention block with positions of LlamaModel \(layers.0": {
            "prefix": "encoder"
        },
        "num_heads: must be 4, as the configuration says": {"prefix": "layers.0.self_attn", "num_heads": 2},
        "causal: must be True, as the model says": {"prefix": "layers.0.self_attn", "causal": False},
    }
    for rule, options in refusals.items():
        with pytest.raises(ValueError, match=rule) as caught:
            attnlearn.load(folder, **options)
        assert "\n" not in str(caught.value)
    alone = tmp_path / "weights.safetensors"
    shutil.copy(folder / "model.safetensors", alone)
    with pytest.raises(ValueError, match=r"path: must lie beside its config\.json, which says the positions"):
        attnlearn.load(alone, num_heads=4, prefix="layers.0.self_attn")
    (folder / "config.json").write_text('{"model_type": "llama", "rope_theta": 1e4, "hidden_size": 64}')
    with pytest.raises(ValueError, match=r"path: must hold layers\.0\.self_attn\.\w+\.weight of shape"):
        attnlearn.load(folder, prefix="layers.0.self_attn")
    (folder / "config.json").write_text('{"model_type": "no such model", "rope_theta": 1e4}')
    with pytest.raises(ValueError, match=r"path: must have a config\.json that transformers knows"):
        attnlearn.load(folder, prefix="layers.0.self_attn")


def test_without_transformers_the_reason_is_said(llama, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match="path: must be read with torch and transformers installed"):
        attnlearn.load(llama[1], prefix="layers.0.self_attn")


def test_commands_take_the_folder_of_a_model(llama, tmp_path, capsys):
    from attnlearn.cli.__main__ import main
    from attnlearn.data import record

    model, folder = llama
    block = "layers.1.self_attn"
    torch.manual_seed(0)
    record(model, block, [torch.randint(3, 50, (300, 6))], tmp_path / "data")
    name, out = ["--prefix", block], str(tmp_path / "small.safetensors")
    assert main(["inspect", str(folder), *name]) == 0
    assert "rotary positions (4 pairs)" in capsys.readouterr().out
    assert main(["convert", str(folder), str(tmp_path / "layer.safetensors"), *name]) == 0
    assert attnlearn.load(tmp_path / "layer.safetensors") == attnlearn.load(folder, prefix=block)
    data = str(tmp_path / "data")
    assert main(["compress", str(folder), data, *name, "--kv-heads", "2", "-o", out, "--quiet"]) == 0
    assert attnlearn.load(out).form.words() == "rotary positions (4 pairs)"
    assert main(["conditions", str(folder), *name, "--tokens", data, "--quiet"]) == 0
