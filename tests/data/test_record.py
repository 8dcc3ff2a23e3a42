"""Recording: the pairs on disk are those of the converted layer, for every family and every kind of padding."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.convert import from_huggingface, from_torch
from attnlearn.data import as_examples, attention_blocks, record

from ._recording import TOLERANCE, relative_error, strong

torch = pytest.importorskip("torch", reason="torch is not installed")


def encoder(**options):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=options.pop("batch_first", True))
    return torch.nn.TransformerEncoder(layer, 2, **options)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_torch_encoder(tmp_path, seed, batch_first, padded, causal):
    model = strong(encoder(batch_first=batch_first), seed).eval()
    x = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(seed))
    hidden = torch.arange(6) >= torch.tensor([6, 4, 3, 1])[:, None]

    class Call(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            mask = torch.ones(6, 6).triu(1).bool() if causal else None
            return self.inner(x, mask=mask, is_causal=causal, src_key_padding_mask=hidden if padded else None)

    batch = x if batch_first else x.transpose(0, 1)
    recorded = record(Call(), "inner.layers.1.self_attn", [batch, batch], tmp_path / "data")
    assert (recorded.num, recorded.tokens, recorded.causal, recorded.masked) == (8, 6, causal, padded)
    if padded:
        assert (recorded.take(np.arange(4)).mask == ~hidden.numpy()).all()
    layer = from_torch(model.layers[1].self_attn, causal=causal)
    assert relative_error(layer, recorded) < TOLERANCE
    # The flag is needed: the other layer is far off.
    assert relative_error(layer.replace(causal=not causal), recorded) > 0.01


def test_a_bare_module(tmp_path, seed):
    module = strong(torch.nn.MultiheadAttention(8, 2, batch_first=True), seed)
    x = torch.randn(5, 4, 8, dtype=torch.float32, generator=torch.Generator().manual_seed(seed))
    recorded = record(module, module, [(x, x, x), (x[0], x[0], x[0])], tmp_path / "data")
    assert recorded.num == 6
    assert relative_error(from_torch(module), recorded) < TOLERANCE
    assert (recorded.take(np.arange(5)).x == x.numpy()).all()


@pytest.mark.parametrize(("dtype", "stored"), [(torch.float64, np.float64), (torch.bfloat16, np.float32)])
def test_precision_is_kept_or_widened(tmp_path, seed, dtype, stored):
    module = strong(torch.nn.MultiheadAttention(8, 2, batch_first=True), seed).to(dtype)
    x = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)
    recorded = record(module, "", [(x, x, x)], tmp_path / "data")
    assert recorded.dtype == stored
    if dtype == torch.float64:
        assert relative_error(from_torch(module), recorded) < 1e-13


def test_the_model_is_left_as_it_was(tmp_path, seed):
    model = strong(encoder(), seed)
    model.train()
    model.layers[0].eval()
    before = {name: part.training for name, part in model.named_modules()}
    x = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    first = record(model, "layers.0.self_attn", [x], tmp_path / "first")
    second = record(model, "layers.0.self_attn", [x], tmp_path / "second")
    assert first.fingerprint() == second.fingerprint()  # no dropout although the model trains
    assert {name: part.training for name, part in model.named_modules()} == before
    assert torch.backends.mha.get_fastpath_enabled()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_failing_batch_leaves_model_and_disk_alone(tmp_path, seed):
    model = strong(encoder(), seed).train()
    x = torch.randn(4, 6, 16)
    with pytest.raises(ValueError, match="x: must be finite"):
        record(model, "layers.0.self_attn", [x, x * torch.nan], tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
    assert model.training
    assert torch.backends.mha.get_fastpath_enabled()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_max_sequences_stops_an_endless_stream(tmp_path, seed):
    model = strong(encoder(), seed)
    drawn = []

    def batches():
        while True:
            drawn.append(1)
            yield torch.randn(4, 6, 16)

    assert record(model, "layers.0.self_attn", batches(), tmp_path / "data", max_sequences=10).num == 10
    assert len(drawn) == 3


def test_lengths_may_differ(tmp_path, seed):
    model = strong(encoder(), seed)
    batches = [np.random.default_rng(seed).standard_normal((2, k, 16)).astype(np.float32) for k in (3, 7, 5)]
    recorded = record(model, "layers.0.self_attn", batches, tmp_path / "data")
    examples = as_examples(recorded)
    assert (examples.tokens, examples.masked) == (7, True)
    assert recorded.take(np.arange(6)).mask.sum(axis=1).tolist() == [3, 3, 7, 7, 5, 5]
    assert relative_error(from_torch(model.layers[0].self_attn), recorded) < TOLERANCE


class Crossed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.mixer(x, x + 1, x)


class Unused(Crossed):
    def forward(self, x):
        return x


class Windowed(Crossed):
    def forward(self, x):
        far = (torch.arange(4)[:, None] - torch.arange(4)).abs() > 1
        return self.mixer(x, x, x, attn_mask=far)


@pytest.mark.parametrize(
    ("model", "module", "message"),
    [
        (Crossed, "mixer", "^module: must be self-attention"),
        (Unused, "mixer", "^module: must be called by the model"),
        (Windowed, "mixer", "^module: must mask by padding and causality alone"),
        (Crossed, "other", r"^module: must name an attention block of the model \(mixer\), got 'other'"),
        (Crossed, torch.nn.Linear(2, 2), r"^module: must name an attention block .*, got 'Linear'"),
    ],
)
def test_what_is_no_layer_is_refused(tmp_path, model, module, message):
    with pytest.raises(ValueError, match=message) as caught:
        record(model(), module, [torch.randn(2, 4, 8)], tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^batches: must hold at least one sequence"):
        record(encoder(), "layers.0.self_attn", [], tmp_path / "data")
    with pytest.raises(ValueError, match=r"^max_sequences: must be an integer >= 1"):
        record(encoder(), "layers.0.self_attn", [], tmp_path / "data", max_sequences=0)
    with pytest.raises(ValueError, match=r"^model: must be a torch.nn.Module, got dict"):
        attention_blocks({})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("keep")
    with pytest.raises(ValueError, match=r"^folder: must not exist yet or be empty"):
        record(encoder(), "layers.0.self_attn", [torch.randn(2, 4, 16)], tmp_path / "data")


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"add_bias_kv": True}, "refused: add_bias_kv"),
        ({"add_zero_attn": True}, "refused: add_zero_attn"),
        ({"kdim": 4}, "refused: keys or values of another dimension"),
        ({}, "supported"),
    ],
)
def test_verdicts_on_torch_modules(options, verdict):
    (block,) = attention_blocks(torch.nn.MultiheadAttention(8, 2, **options))
    assert block.verdict.startswith(verdict)
    assert block.supported == (verdict == "supported")
    assert (block.name, block.layout, block.num_heads, block.dim) == ("", "torch", 2, 8)


def test_the_decoder_of_torch_has_one_of_each():
    names = {
        block.name: block.supported
        for block in attention_blocks(torch.nn.Transformer(8, 2, 1, 1, 8, batch_first=True))
    }
    assert names == {
        "encoder.layers.0.self_attn": True,
        "decoder.layers.0.self_attn": True,
        "decoder.layers.0.multihead_attn": False,
    }


def old_gpt2(size):
    """GPT-2 as transformers once had it: the causal mask is a buffer that the module applies itself."""

    class OldAttention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
            self.num_heads = 2
            self.register_buffer("bias", torch.ones(size, size).tril().bool()[None, None])

        def forward(self, hidden_states, attention_mask=None):
            n, k, _ = hidden_states.shape
            q, key, v = (
                p.view(n, k, 2, 4).transpose(1, 2) for p in self.c_attn(hidden_states).split(8, dim=-1)
            )
            scores = (q @ key.transpose(2, 3) / 2).masked_fill(~self.bias[..., :k, :k], -torch.inf)
            mixed = (scores + attention_mask).softmax(-1) @ v
            return self.c_proj(mixed.transpose(1, 2).reshape(n, k, 8))

    return OldAttention()


def test_a_causal_mask_inside_the_module_is_seen(tmp_path):
    x, real = torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    mask = torch.zeros(2, 1, 1, 5).masked_fill(~real[:, None, None], -torch.inf)
    recorded = record(old_gpt2(9), "", [{"hidden_states": x, "attention_mask": mask}], tmp_path / "data")
    assert recorded.causal is True
    assert (recorded.take(np.arange(2)).mask == real.numpy()).all()


def test_from_huggingface_agrees_on_what_is_supported():
    # A block that the listing calls supported converts; this keeps the two from drifting apart.
    model = encoder()
    for block in attention_blocks(model):
        assert from_huggingface(model, prefix=block.name).num_heads == block.num_heads


class Tokenizer:
    """What `record` reads of a tokenizer."""

    def convert_ids_to_tokens(self, ids):
        return [f"word{number}" for number in ids]


def test_tokens_are_kept_as_text(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(10, 8)
            self.block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, input_ids):
            return self.block(self.embed(input_ids))

    ids = [torch.arange(6).reshape(2, 3), torch.arange(4, 10).reshape(2, 3)]
    batches = [{"input_ids": part} for part in ids]
    recorded = record(Model(), "block.self_attn", batches, tmp_path / "a", tokens=Tokenizer())
    assert recorded.words[1] == ("word3", "word4", "word5")
    assert len(recorded.words) == 4
    by_function = record(
        Model(), "block.self_attn", ids, tmp_path / "b",
        tokens=lambda batch: [[str(int(number)) for number in row] for row in batch], max_sequences=3,
    )  # fmt: skip
    assert by_function.words == (("0", "1", "2"), ("3", "4", "5"), ("4", "5", "6"))
    with pytest.raises(ValueError, match="tokens: must give one list of strings for each sequence"):
        record(Model(), "block.self_attn", ids, tmp_path / "c", tokens=lambda batch: batch)
    assert not (tmp_path / "c").exists()
