"""Files: every layout is recognised, nothing hostile gets in, nothing half-written stays behind."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import attnlearn
from attnlearn import AttentionLayer, convert

from .sources import attention, relative, same_layer

LAYER = AttentionLayer.random(2, 6, rank=2, bias=True)
LAYOUTS = (
    "attnlearn",
    "qkvo",
    "torch",
    "bert",
    "albert",
    "vit",
    "o_proj",
    "out_proj",
    "gpt2",
    "transformer_lens",
)
REAL = {
    "sapiens-vh-layer0": ("self_attn.{}_proj", "qkv", "self_attn.out_proj"),
    "sapiens-vh-layer3": ("self_attn.{}_proj", "qkv", "self_attn.out_proj"),
    "rxnmapper-layer": ("attention.{}", ("query", "key", "value"), "attention.dense"),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "layer.safetensors"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_layout_loads_back(layout, causal, path):
    layer = LAYER.replace(causal=causal)
    if layout == "gpt2" and not causal:
        pytest.skip("GPT-2 is causal")
    convert.save_layout(layer, path, layout=layout)
    back = attnlearn.load(path)
    assert back.causal == causal
    assert same_layer(back, layer, 1e-12)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "attnlearn"])
def test_prefix_is_written_and_chosen(layout, path):
    convert.save_layout(LAYER.replace(causal=True), path, layout=layout, prefix="decoder.layers.7.attn")
    assert same_layer(attnlearn.load(path, prefix="decoder.layers.7"), LAYER.replace(causal=True), 1e-12)


def test_unknown_layout_lists_the_known_ones(path):
    with pytest.raises(ValueError, match=r"layout: must be one of attnlearn, qkvo, torch, bert.*got 'onnx'"):
        convert.save_layout(LAYER, path, layout="onnx")
    assert not path.exists()


@pytest.mark.parametrize("name", REAL)
def test_real_layers_equal_a_direct_computation(name, layers, rng):
    from safetensors.numpy import load_file

    pattern, parts, output = REAL[name]
    raw = {key: value.astype(np.float64) for key, value in load_file(layers / f"{name}.safetensors").items()}
    layer = attnlearn.load(layers / f"{name}.safetensors", dtype=np.float64)
    d, m = layer.dim, 8
    weights, biases = [], []
    for part in parts:
        weight = raw[f"{pattern.format(part)}.weight"].reshape(m, d // m, d)  # (out, in): heads are rows
        weights.append(np.swapaxes(weight, 1, 2))
        biases.append(raw[f"{pattern.format(part)}.bias"].reshape(m, d // m))
    wo = raw[f"{output}.weight"].T.reshape(m, d // m, d)
    x = rng.standard_normal((4, 9, d))
    wanted = attention(x, *weights, wo, *biases, raw[f"{output}.bias"], scale=(d // m) ** -0.5)
    assert layer.num_heads == m
    assert relative(layer(x), wanted) < 1e-12


@pytest.mark.parametrize(
    ("name", "layout"), [("sapiens-vh-layer0", "out_proj"), ("rxnmapper-layer", "albert")]
)
def test_real_layers_go_back_into_their_layout(name, layout, layers, path):
    from safetensors.numpy import load_file

    source = layers / f"{name}.safetensors"
    layer = attnlearn.load(source, dtype=np.float64)
    prefix = {"out_proj": "self_attn.", "albert": "attention."}[layout]
    convert.save_layout(layer, path, layout=layout, prefix=prefix)
    shapes = {key: array.shape for key, array in load_file(path).items()}
    assert shapes == {key: array.shape for key, array in load_file(source).items()}
    assert same_layer(attnlearn.load(path), layer, 1e-12)


def test_real_layer_in_its_own_precision(layers):
    assert attnlearn.load(layers / "sapiens-vh-layer0.safetensors").dtype == np.float32


def test_metadata_and_argument_must_agree(layers):
    with pytest.raises(ValueError, match=r"num_heads: must be 8.*got 4"):
        attnlearn.load(layers / "rxnmapper-layer.safetensors", num_heads=4)


def test_half_precision_is_widened_exactly(path):
    state = convert.to_qkv_proj(LAYER)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        half = {name: array.astype(dtype) for name, array in state.items()}
        save_file(half, path)
        layer = attnlearn.load(path, num_heads=2)
        wide = {name: array.astype(np.float32) for name, array in half.items()}
        assert layer.dtype == np.float32
        assert layer == convert.from_huggingface(wide, num_heads=2)


def test_head_count_is_never_guessed(path):
    save_file(convert.to_bert(LAYER), path)
    with pytest.raises(ValueError, match=r"num_heads: must be given.*never guessed"):
        attnlearn.load(path)
    assert attnlearn.load(path, num_heads=2).num_heads == 2


def test_lens_file_must_say_whether_it_is_causal(path):
    save_file(convert.to_transformer_lens(LAYER), path)
    with pytest.raises(ValueError, match="causal: must be given"):
        attnlearn.load(path)
    assert attnlearn.load(path, causal=True).causal


@pytest.mark.parametrize(
    "metadata", [{"num_heads": "many"}, {"num_heads": "-2"}, {"num_heads": "2", "scale": "x"}]
)
def test_bad_metadata_is_refused(metadata, path):
    save_file(convert.to_bert(LAYER), path, metadata=metadata)
    with pytest.raises(ValueError, match="metadata"):
        attnlearn.load(path)


def test_metadata_naming_a_rotary_model(path):
    save_file(convert.to_qkv_proj(LAYER), path, metadata={"num_heads": "2", "model_type": "llama"})
    with pytest.raises(ValueError, match=r"RoPE.*model_type = llama"):
        attnlearn.load(path)


def test_configuration_beside_a_model(tmp_path):
    save_file(convert.to_qkv_proj(LAYER), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2, "model_type": "opt"}))
    layer = attnlearn.load(tmp_path / "model.safetensors")
    assert layer.num_heads == 2
    assert layer.causal
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2, "model_type": "llama"}))
    with pytest.raises(ValueError, match=r"torch and transformers|prefix: must name one attention block"):
        attnlearn.load(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"valid config.json"):
        attnlearn.load(tmp_path / "model.safetensors")


def test_ambiguous_file_lists_what_it_holds(path):
    state = convert.to_bert(LAYER, prefix="encoder.layer.0.attention.")
    state |= convert.to_bert(LAYER, prefix="encoder.layer.1.attention.")
    save_file(state, path)
    with pytest.raises(
        ValueError, match=r"encoder.layer.0.attention \(bert\), encoder.layer.1.attention \(bert\)"
    ):
        attnlearn.load(path, num_heads=2)
    assert attnlearn.load(path, num_heads=2, prefix="encoder.layer.1").dim == 6


def test_file_without_attention_says_what_it_holds(path):
    save_file({"fc.weight": np.ones((2, 2))}, path)
    with pytest.raises(ValueError, match=r"known layout .*got fc.weight"):
        attnlearn.load(path)


def header(entries, body=b"", length=None):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(shape, start, end, dtype="F64"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE = {
    "empty": b"",
    "short": b"\1\2\3",
    "header longer than the file": header({}, length=10**6),
    "header length of 2^63": header({}, length=2**63),
    "header that is not JSON": struct.pack("<Q", 4) + b"{{{{",
    "overlapping offsets": header({"a": entry([2], 0, 16), "b": entry([2], 8, 24)}, bytes(24)),
    "hole between tensors": header({"a": entry([1], 0, 8), "b": entry([1], 16, 24)}, bytes(24)),
    "huge shape": header({"q_proj.weight": entry([2**31, 2**31], 0, 8)}, bytes(8)),
    "overflowing shape": header({"q_proj.weight": entry([2**62, 4], 0, 0)}),
    "offsets past the end": header({"a": entry([4], 0, 32)}, bytes(8)),
    "negative shape": header({"a": entry([-1], 0, 8)}, bytes(8)),
    "unknown dtype": header({"a": entry([1], 0, 8, "F128")}, bytes(8)),
    "text": b"once upon a time there was a file",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_files_are_one_line(content, path):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="path: must be a valid safetensors file") as error:
        attnlearn.load(path, num_heads=2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layout", ["attnlearn", "bert"])
def test_truncated_files_are_refused(layout, path):
    convert.save_layout(LAYER, path, layout=layout)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 20, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="valid safetensors"):
            attnlearn.load(path)


def test_integer_weights_are_refused(path):
    state = {name: array.astype(np.int64) for name, array in convert.to_bert(LAYER).items()}
    save_file(state, path)
    with pytest.raises(ValueError, match=r"must be float32 or float64.*int64"):
        attnlearn.load(path, num_heads=2)


def test_a_directory_and_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="path: must be a file, got the directory"):
        attnlearn.load(tmp_path)
    with pytest.raises(ValueError, match="path: no such file"):
        attnlearn.load(tmp_path / "none.safetensors")


def test_unwritable_output_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="path: cannot write"):
        convert.save_layout(LAYER, tmp_path / "no" / "such" / "x.safetensors", layout="bert")
    with pytest.raises(ValueError, match="path: must be a file to write, got the directory"):
        convert.save_layout(LAYER, tmp_path, layout="bert")
    assert os.listdir(tmp_path) == []


def test_torch_checkpoints_are_read_without_running_them(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is an extra")
    state = {name: torch.from_numpy(array) for name, array in convert.to_bert(LAYER).items()}
    torch.save(state, tmp_path / "a.pt")
    assert same_layer(attnlearn.load(tmp_path / "a.pt", num_heads=2), LAYER, 1e-12)
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "b.ckpt")
    assert same_layer(attnlearn.load(tmp_path / "b.ckpt", num_heads=2), LAYER, 1e-12)


class Bomb:
    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return (os.mkdir, (self.target,))


@pytest.mark.parametrize("name", ["model.bin", "model.pkl", "renamed.safetensors"])
def test_pickles_never_run(name, tmp_path):
    import pickle

    (tmp_path / name).write_bytes(pickle.dumps({"q_proj.weight": Bomb(tmp_path / "ran")}))
    with pytest.raises(ValueError, match="path: must be safetensors, got the pickle"):
        attnlearn.load(tmp_path / name, num_heads=2)
    assert not (tmp_path / "ran").exists()


def test_pickles_without_torch_say_how_to_convert(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x04N.")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import attnlearn\n"
        f"try: attnlearn.load({str(tmp_path / 'model.bin')!r})\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "safetensors.torch.save_file(torch.load(path, weights_only=True)" in done.stdout
    assert done.stdout.count("\n") == 1


def test_loading_imports_neither_torch_nor_transformers(layers):
    code = (
        "import sys, attnlearn\n"
        f"attnlearn.load({str(layers / 'sapiens-vh-layer0.safetensors')!r})\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_header_that_begins_like_a_pickle_is_none(tmp_path) -> None:
    """The first byte of a safetensors file is its header's length: 128, 384, ... begin like a pickle."""
    layer = AttentionLayer.random(2, 4, seed=1)
    path, seen = tmp_path / "layer.safetensors", set()
    for padding in range(0, 256, 8):
        layer.save(path, provenance={"note": "x" * padding})
        seen.add(path.read_bytes()[0])
        assert attnlearn.load(path) == layer
    assert 0x80 in seen


HOSTILE_NAME = "self\x1b[2J_attn\nsecond line"


@pytest.mark.parametrize(
    "names",
    [
        (f"{HOSTILE_NAME}.q_proj.weight",),
        (HOSTILE_NAME,),
        tuple(f"{HOSTILE_NAME}.{i}.{name}_proj.weight" for i in range(2) for name in "qkvo"),
        (*(f"{name}_proj.weight" for name in "qkvo"), HOSTILE_NAME),
    ],
)
def test_names_in_a_file_reach_no_terminal_as_control_characters(names, path):
    save_file({name: np.eye(4) for name in names}, path)
    with pytest.raises(ValueError, match=r"^path: must hold") as caught:
        attnlearn.load(path, num_heads=2)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("version", ["\x1b[2J", "9" * 5000])
def test_a_strange_version_is_shown_in_plain_words(version, path):
    save_file({"theta": np.eye(2)}, path, {"format": "attnlearn/layer", "version": version})
    with pytest.raises(ValueError, match="version 1 or 2, got") as caught:
        attnlearn.load(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("bias", [1e20, 1e200])
def test_keys_too_large_to_be_checked_are_refused_without_a_warning(bias, path):
    weights = {f"{name}_proj.weight": np.eye(4) for name in "qkvo"}
    biases = {f"{name}_proj.bias": np.full(4, bias if name == "k" else 0.0) for name in "qkv"}
    save_file(weights | biases, path)
    with pytest.raises(attnlearn.AttnlearnError, match="self-check failed"):
        attnlearn.load(path, num_heads=2, causal=False)
