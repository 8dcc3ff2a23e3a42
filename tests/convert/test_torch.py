"""nn.MultiheadAttention: the layer computes what the module computes, and the other way round."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, convert

from .sources import relative, same_layer

torch = pytest.importorskip("torch", reason="torch is an extra")


def attention_module(seed, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    module = torch.nn.MultiheadAttention(12, 4, dtype=dtype, **options)
    with torch.no_grad():  # torch starts biases at zero, which would hide them
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return module


def own_forward(module, x, causal):
    tokens = torch.from_numpy(x)
    tokens = tokens if module.batch_first else tokens.transpose(0, 1)
    k = x.shape[1]
    mask = torch.triu(torch.ones(k, k, dtype=torch.bool), 1) if causal else None
    with torch.no_grad():
        y = module.eval()(tokens, tokens, tokens, attn_mask=mask, need_weights=False)[0]
    return (y if module.batch_first else y.transpose(0, 1)).numpy()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_from_torch_equals_the_module(causal, bias, batch_first, seed, rng):
    module = attention_module(seed, bias=bias, batch_first=batch_first, dropout=0.3)
    layer = convert.from_torch(module, causal=causal)
    x = rng.standard_normal((3, 7, 12))
    assert relative(layer(x), own_forward(module, x, causal)) < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_to_torch_equals_the_layer(causal, seed, rng):
    layer = AttentionLayer.random(4, 12, rank=2, bias=True, seed=seed, causal=causal)
    module = convert.to_torch(layer)
    x = rng.standard_normal((3, 7, 12))
    assert relative(own_forward(module, x, causal), layer(x)) < 1e-12
    assert same_layer(convert.from_torch(module, causal=causal), layer, 1e-12)


def test_padding_mask_is_the_same_mask(seed, rng):
    module = attention_module(seed, batch_first=True).eval()
    layer = convert.from_torch(module)
    x, keep = rng.standard_normal((2, 5, 12)), np.array([[True] * 5, [True] * 3 + [False] * 2])
    tokens = torch.from_numpy(x)
    with torch.no_grad():
        y = module(tokens, tokens, tokens, key_padding_mask=torch.from_numpy(~keep), need_weights=False)[0]
    np.testing.assert_allclose(layer(x, mask=keep)[keep], y.numpy()[keep], atol=1e-12)


def test_the_module_is_neither_changed_nor_observed(seed):
    module = attention_module(seed, dropout=0.5)
    calls = []
    module.register_forward_hook(lambda *_: calls.append(1))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first, second = convert.from_torch(module), convert.from_torch(module)
    assert first == second
    assert module.training
    assert not calls
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precisions_become_float32(dtype, seed):
    module = attention_module(seed, dtype=dtype)
    layer = convert.from_torch(module)
    assert layer.dtype == np.float32
    assert layer == convert.from_torch(module.float())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ({"kdim": 5}, "kdim=5"),
        ({"vdim": 6}, "vdim=6"),
    ],
)
def test_refusals(options, word):
    with pytest.raises(ValueError, match=word) as error:
        convert.from_torch(torch.nn.MultiheadAttention(12, 4, **options))
    assert "\n" not in str(error.value)


def test_other_modules_are_refused():
    with pytest.raises(ValueError, match=r"module: must be a torch.nn.MultiheadAttention.*Linear"):
        convert.from_torch(torch.nn.Linear(3, 3))


def test_a_forward_that_does_something_else_is_refused(seed):
    class Capped(torch.nn.MultiheadAttention):
        def forward(self, *arguments, **options):
            y, weights = super().forward(*arguments, **options)
            return torch.tanh(y), weights

    with pytest.raises(ValueError, match=r"forward that differs from its own Q/K/V/O"):
        convert.from_torch(Capped(12, 4))


def test_found_inside_an_encoder_layer(seed, rng):
    torch.manual_seed(seed)
    encoder = torch.nn.TransformerEncoderLayer(12, 4, dtype=torch.float64, batch_first=True)
    layer = convert.from_huggingface(encoder)
    x = rng.standard_normal((2, 5, 12))
    assert relative(layer(x), own_forward(encoder.self_attn, x, False)) < 1e-12
