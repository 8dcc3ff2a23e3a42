"""Shared keys and values: written once where the layout lets heads share, refused where heads do not."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, load
from attnlearn.convert import from_qkvo, save_layout, to_qkv_proj, to_qkvo


def grouped(seed: int, dtype: type = np.float64) -> AttentionLayer:
    rng = np.random.default_rng(seed)
    wq, bq = rng.standard_normal((4, 8, 3)), rng.standard_normal((4, 3))
    wk, wv = rng.standard_normal((2, 2, 8, 3))
    return from_qkvo(wq, wk, wv, rng.standard_normal((4, 3, 8)), bq).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shared_arrays_give_the_layer_back(dtype: type, seed: int) -> None:
    layer = grouped(seed, dtype)
    arrays = to_qkvo(layer, kv_heads=2)
    assert arrays.wk.shape == arrays.wv.shape == (2, 8, 3)
    back = from_qkvo(*arrays)
    tolerance = 1e-11 if dtype is np.float64 else 1e-4
    for one, other in zip(back.parameters, layer.parameters):
        np.testing.assert_allclose(one, other, atol=tolerance)


@pytest.mark.parametrize("layout", ["qkvo", "o_proj", "out_proj"])
def test_files_hold_each_key_once(layout: str, seed: int, tmp_path) -> None:
    layer = grouped(seed)
    save_layout(layer, tmp_path / "layer.safetensors", layout=layout, kv_heads=2)
    np.testing.assert_allclose(load(tmp_path / "layer.safetensors").theta, layer.theta, atol=1e-11)
    assert to_qkv_proj(layer, kv_heads=2)["k_proj.weight"].shape == (6, 8)


def test_heads_that_do_not_share_are_refused(seed: int) -> None:
    layer = AttentionLayer.random(4, 8, rank=2, seed=seed)
    with pytest.raises(
        ValueError, match="kv_heads: must leave every group of 2 heads no wider than the head dimension 2"
    ):
        to_qkvo(layer, kv_heads=2)
    with pytest.raises(ValueError, match="kv_heads: must divide the 4 heads, got 3"):
        to_qkvo(layer, kv_heads=3)
