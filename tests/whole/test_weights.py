"""Whole transformers models with rotary positions made smaller: the folder loads into the model's own class, with fewer keys and values."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attnlearn
from attnlearn import CompressConfig
from attnlearn.convert import from_huggingface
from attnlearn.whole import compress_model, outputs_of, with_blocks
from tests.convert.models import ROWS, build

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers")
load_file = pytest.importorskip("safetensors.torch").load_file
QUICK = CompressConfig(num_examples=400, shape_steps=3)


def batches(num=4, k=8):
    torch.manual_seed(1)
    return [{"input_ids": torch.randint(3, 50, (120, k))} for _ in range(num)]


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt-oss", "gpt-neox", "t5"])
def test_blocks_put_back_give_the_same_outputs(name, seed):
    row = ROWS[name]
    model, given = build(row, seed), batches(1)
    given = [given[0] | ({"decoder_input_ids": given[0]["input_ids"]} if row.kind == "T5" else {})]
    before = outputs_of(model, given)
    with with_blocks(model, {row.block: from_huggingface(model, prefix=row.block)}):
        after = outputs_of(model, given)
    assert np.linalg.norm(after - before) <= 1e-5 * np.linalg.norm(before)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "cohere"])
def test_fewer_keys_load_back_into_the_class(name, seed, tmp_path):
    model, given = build(ROWS[name], seed), batches()
    before = outputs_of(model, given[-1:])
    whole = compress_model(model, given, tmp_path, kv_heads=1, config=QUICK)
    assert all(block.written for block in whole.blocks), [block.why for block in whole.blocks]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_key_value_heads"] == 1
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    after = outputs_of(again, given[-1:])
    moved = float(np.linalg.norm(after - before) / np.linalg.norm(before))
    assert moved == pytest.approx(whole.effect.difference, rel=1e-3)
    layer = attnlearn.load(tmp_path, prefix=whole.blocks[1].name)
    assert layer.num_heads == 4


def test_the_shapes_of_the_model_hold_repeated_keys(seed, tmp_path):
    model, given = build(ROWS["llama"], seed), batches()
    whole = compress_model(model, given, tmp_path, kv_heads=1, config=QUICK)
    again = build(ROWS["llama"], seed + 1)
    again.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    before, after = outputs_of(model, given[-1:]), outputs_of(again, given[-1:])
    moved = float(np.linalg.norm(after - before) / np.linalg.norm(before))
    assert moved == pytest.approx(whole.effect.difference, rel=1e-3)
