"""`compare`: heads matched in any order, and only what the tokens can show is counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attnlearn import AttentionLayer, Support, compare
from attnlearn.cli.__main__ import main

DIM = 6


def unseen(layer: AttentionLayer) -> AttentionLayer:
    """The same layer on tokens whose coordinates sum to zero, with other weights."""
    return layer.replace(theta=layer.theta + 3.0, w=layer.w + 2.0)


def centred(num: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((num, 4, DIM))
    return x - x.mean(axis=2, keepdims=True)


def test_heads_are_matched_and_measured_one_by_one(seed: int) -> None:
    layer = AttentionLayer.random(3, DIM, bias=True, seed=seed).canonical()
    w = layer.w.copy()
    w[1] *= 1.1
    found = compare(layer.replace(w=w).chosen([2, 0, 1], w[[2, 0, 1]]), layer)
    assert sorted(row["w"] for row in found.rows())[:2] == [0.0, 0.0]
    assert max(row["w"] for row in found.rows()) == pytest.approx(0.1)
    assert found.directions is None
    assert "on all tokens" in str(found)


def test_tokens_leave_out_what_they_cannot_show(seed: int) -> None:
    layer = AttentionLayer.random(2, DIM, seed=seed)
    assert compare(unseen(layer), layer).distance.max > 0.5
    found = compare(unseen(layer), layer, centred(200, seed))
    assert found.directions == DIM - 1
    assert found.distance.max < 1e-10
    assert found.function_error < 1e-10


def test_the_support_in_a_file_serves_the_command_line(seed: int, tmp_path, capsys) -> None:
    layer = AttentionLayer.random(2, DIM, seed=seed)
    basis = np.linalg.svd(centred(50, seed).reshape(-1, DIM), full_matrices=False)[2][: DIM - 1].T
    layer.save(tmp_path / "b.safetensors")
    unseen(layer).save(tmp_path / "a.safetensors", support=Support(np.zeros(DIM), basis))
    assert AttentionLayer.load(tmp_path / "a.safetensors") == unseen(layer)
    files = [str(tmp_path / name) for name in ("a.safetensors", "b.safetensors")]
    assert main(["compare", *files, "--json", str(tmp_path / "out.json")]) == 0
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["directions"] == DIM - 1
    assert document["distance"]["max"] < 1e-10
    assert "the file of a" in capsys.readouterr().out
    assert main(["compare", files[0], str(tmp_path / "none.safetensors")]) == 2


def test_certify_on_the_command_line(seed: int, tmp_path) -> None:
    layer = AttentionLayer.random(2, DIM, seed=seed)
    layer.save(tmp_path / "big.safetensors")
    layer.astype(np.float32).save(tmp_path / "small.safetensors")
    x = np.random.default_rng(seed).standard_normal((300, 4, DIM))
    np.savez(tmp_path / "data.npz", x=x, y=layer(x))
    arguments = [
        "certify",
        *(str(tmp_path / name) for name in ("small.safetensors", "big.safetensors", "data.npz")),
    ]
    assert main([*arguments, "--target", "1e-4"]) == 0
    assert main([*arguments, "--target", "1e-12"]) == 3


def test_bad_input_is_one_line() -> None:
    layer = AttentionLayer.random(2, DIM)
    with pytest.raises(ValueError, match="a: must be an AttentionLayer or a file of one, got 'int'"):
        compare(3, layer)
    with pytest.raises(ValueError, match=r"data: must have shape \(n, k, 6\)"):
        compare(layer, layer, np.ones((3, 4, 2)))
