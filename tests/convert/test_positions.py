"""transformers' modules with positions: read, recorded, compared with their own forward, written again."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import distance
from attnlearn.convert import from_huggingface, to_huggingface, value_groups
from attnlearn.data import attention_blocks, record
from attnlearn.scores import describe, frequencies_of
from tests.convert.models import REFUSED, ROWS, SINGLE, batch, build

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(params=ROWS.values(), ids=ROWS.keys())
def row(request):
    return request.param


def test_recorded_activations_are_the_layers_outputs(row, seed, tmp_path):
    """Inside the whole model, with its own masks, positions and padding."""
    model = build(row, seed)
    found = record(model, row.block, [batch(row, seed)], tmp_path / "data")
    layer = from_huggingface(model, prefix=row.block)
    every = found.take(np.arange(found.num))
    outputs = layer(every.x, every.mask)
    wanted = every.y if every.mask is None else every.y * every.mask[..., None]
    # transformers makes cosines in float32, and some models compute in float32
    np.testing.assert_allclose(outputs, wanted, atol=2e-6 * np.abs(wanted).max())
    assert found.causal == layer.causal
    assert found.provenance.get("window") == layer.window == row.window
    assert found.provenance["positions"]["kind"] == describe(layer.form)["kind"]


def test_a_written_layer_is_read_again(row, seed):
    if row.family is None:
        pytest.skip("read and not written")
    model = build(row, seed)
    layer = from_huggingface(model, prefix=row.block)
    twin = build(row, seed + 1)
    module = twin.get_submodule(row.block)
    factor = 1.0
    if shares_keys(layer):
        config = model.config.to_dict()
        factor = frequencies_of(config, (config.get("layer_types") or [None] * 2)[1]).factor
    last = {"qkv_proj": "o_proj", "phi": "dense"}.get(row.family)
    output_bias = last is None or getattr(module, last).bias is not None
    conventions = {"pairing": row.pairing, "factor": factor, "output_bias": output_bias, **dict(row.writing)}
    state = to_huggingface(layer, row.family, **conventions)
    owner = state.pop("relative_attention_bias.weight", None)
    if owner is not None:
        first = row.block.replace("block.1", "block.0")
        own = twin.get_submodule(first).relative_attention_bias.weight
        own.data = torch.from_numpy(owner).to(own.dtype)
    wanted = dict(module.named_parameters())
    missing = set(wanted) - set(state) - {"relative_attention_bias.weight"}
    assert all(name.endswith("bias") for name in missing)
    for name, parameter in wanted.items():
        if name == "relative_attention_bias.weight":
            continue
        value = torch.from_numpy(state[name]) if name in state else torch.zeros_like(parameter)
        assert value.shape == parameter.shape, name
        parameter.data = value.to(parameter.dtype)
    again = from_huggingface(twin, prefix=row.block)
    # Gemma's norm adds 1 to its gains in float32
    assert distance(again, layer).max < (
        1e-4 if row.kind in SINGLE else 1e-6 if "Gemma3" in row.kind else 1e-9
    )


def shares_keys(layer):
    return {"query", "key"} <= layer.form.arrays().keys()


def test_shared_keys_are_recognised(row, seed):
    layer = from_huggingface(build(row, seed), prefix=row.block)
    if not shares_keys(layer):
        pytest.skip("only rotary families share keys")
    groups = value_groups(layer, 1e-4 if row.kind in SINGLE else 1e-9)
    assert max(groups) + 1 == row.key_heads
    tolerance = 1e-4 if row.kind in SINGLE else 1e-9
    mixed = layer.canonical()  # another order and another gauge
    assert sorted(np.bincount(value_groups(mixed, tolerance))) == sorted(np.bincount(groups))


@pytest.mark.parametrize(("row", "feature"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_layer_cannot_hold_is_refused_by_name(row, feature, tmp_path):
    model = build(row)
    with pytest.raises(ValueError, match=feature):
        from_huggingface(model, prefix=row.block)
    with pytest.raises(ValueError, match=feature):
        record(model, row.block, [batch(row)], tmp_path / "data")
    verdict = next(block for block in attention_blocks(model) if block.name == row.block)
    assert not verdict.supported


def test_a_block_alone_is_enough_where_it_has_everything(seed):
    row = ROWS["llama"]
    model = build(row, seed)
    whole = from_huggingface(model, prefix=row.block)
    assert from_huggingface(model.get_submodule(row.block)) == whole


def test_a_block_without_its_table_says_where_the_table_is():
    row = ROWS["t5"]
    with pytest.raises(ValueError, match="module: must come with the table of its positions"):
        from_huggingface(build(row).get_submodule(row.block))


def test_several_blocks_are_listed():
    with pytest.raises(
        ValueError, match=r"prefix: must name one attention block .layers.0.self_attn, layers.1"
    ):
        from_huggingface(build(ROWS["llama"]))


def test_a_changed_forward_is_noticed(seed, monkeypatch):
    """A module that turns in another way than its configuration says is refused, whatever its names are."""
    from transformers.models.llama import modeling_llama

    inner = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(
        modeling_llama,
        "apply_rotary_pos_emb",
        lambda q, k, cos, sin: inner(q, k, cos.roll(1, -1), sin.roll(1, -1)),
    )
    with pytest.raises(ValueError, match="module: must compute softmax attention with known positions"):
        from_huggingface(build(ROWS["llama"], seed), prefix="layers.1.self_attn")
