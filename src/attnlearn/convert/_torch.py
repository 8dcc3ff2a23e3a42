"""`torch.nn.MultiheadAttention`: in_proj_weight (3 E, E) holds query, key and value in turn, stored (out, in).

The module knows no causal flag (its caller passes a mask), so `causal` is given here. After reading, the
module's own forward is compared with the layer on a few tokens.
Can fail: add_bias_kv, add_zero_attn, kdim or vdim are refused by name; heads of rank above E / heads cannot be
written.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._arrays import assemble_wide, to_floats
from attnlearn.convert._bert import square_heads
from attnlearn.convert._calibration import FORWARD_TOLERANCE
from attnlearn.convert._check import (
    TINY,
    Source,
    check_tokens,
    layer_forward,
    linear,
    self_check,
)
from attnlearn.convert._projections import linear_tensors
from attnlearn.convert._qkvo import from_qkvo, require_head_count
from attnlearn.convert._refusals import BIAS_KV, DIFFERENT_KEYS, ZERO_ATTN, refuse

if TYPE_CHECKING:
    import torch


def assemble_torch(
    tensors: Mapping[str, np.ndarray], num_heads: int, scale: float | None, causal: bool
) -> AttentionLayer:
    """The layer of in_proj (3 E, E) and out_proj (E, E); biases come together or not at all."""
    m = require_head_count(num_heads)
    joined, output = tensors["in.weight"], tensors["output.weight"]
    bias, output_bias = tensors.get("in.bias"), tensors.get("output.bias")
    present = [name for name in ("in_proj_bias", "out_proj.bias") if tensors.get(_role(name)) is not None]
    require(len(present) != 1, "state", "must have both in_proj_bias and out_proj.bias, or neither", present)
    d = joined.shape[1] if joined.ndim == 2 else 0
    require(joined.shape == (3 * d, d) and d > 0, "in_proj_weight", "must have shape (3 E, E)", joined)
    require(output.shape == (d, d), "out_proj.weight", f"must have shape ({d}, {d})", output)
    require(bias is None or bias.shape == (3 * d,), "in_proj_bias", f"must have shape ({3 * d},)", bias)
    require(d % m == 0, "num_heads", f"must divide the width {d}", m)
    scale = float((d // m) ** -0.5 if scale is None else scale)
    wq, wk, wv = np.split(joined, 3)
    bq, bk, bv = (None, None, None) if bias is None else np.split(bias, 3)
    layer = from_qkvo(wq.T, wk.T, wv.T, output.T, bq, bk, bv, output_bias, scale, num_heads=m, causal=causal)
    maps = (linear(wq, bq), linear(wk, bk), linear(wv, bv), linear(output, output_bias))
    return self_check(layer, Source(*maps, m, m, scale, causal))


def from_torch(module: torch.nn.MultiheadAttention, *, causal: bool = False) -> AttentionLayer:
    """The layer of an `nn.MultiheadAttention` used as self-attention.

    >>> import torch
    >>> from_torch(torch.nn.MultiheadAttention(6, 2), causal=True)
    AttentionLayer(num_heads=2, dim=6, out_dim=6, causal=True, dtype=float32)
    """
    import torch

    require(
        isinstance(module, torch.nn.MultiheadAttention),
        "module",
        "must be a torch.nn.MultiheadAttention (from_huggingface reads other modules)",
        type(module).__name__,
    )
    if module.bias_k is not None or module.bias_v is not None:
        refuse("module", BIAS_KV, "bias_k and bias_v are set")
    if module.add_zero_attn:
        refuse("module", ZERO_ATTN, "add_zero_attn=True")
    if module.in_proj_weight is None:
        refuse("module", DIFFERENT_KEYS, f"kdim={module.kdim}, vdim={module.vdim}")
    named = {
        "in.weight": module.in_proj_weight,
        "in.bias": module.in_proj_bias,
        "output.weight": module.out_proj.weight,
        "output.bias": module.out_proj.bias,
    }
    tensors = {role: to_floats(value, role) for role, value in named.items() if value is not None}
    own = _own_forward(module, causal)
    return assemble_wide(
        assemble_torch,
        tensors,
        module.num_heads,
        None,
        causal,
        check=lambda layer: require_same_forward(layer, own),
    )


def to_torch(layer: AttentionLayer, *, tolerance: float | None = None) -> torch.nn.MultiheadAttention:
    """An `nn.MultiheadAttention` (batch_first, in eval mode) that computes the layer.

    A causal layer needs its mask passed at every call, as always with this module.

    >>> module = to_torch(AttentionLayer.random(2, 6, rank=3))
    >>> module.num_heads, module.embed_dim
    (2, 6)
    """
    import torch

    state = to_torch_state(layer, tolerance=tolerance)
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    module = torch.nn.MultiheadAttention(layer.dim, layer.num_heads, batch_first=True)
    module.to(tensors["in_proj_weight"].dtype).load_state_dict(tensors)
    return module.eval()


def to_torch_state(
    layer: AttentionLayer, *, prefix: str = "", tolerance: float | None = None
) -> dict[str, np.ndarray]:
    """State dict of `to_torch`, without torch: in_proj_weight, in_proj_bias, out_proj.weight, out_proj.bias.

    >>> to_torch_state(AttentionLayer.random(2, 6, rank=3))["in_proj_weight"].shape
    (18, 6)
    """
    roles = linear_tensors(square_heads(layer, "torch", tolerance))
    parts = ("query", "key", "value")
    return {
        f"{prefix}in_proj_weight": np.concatenate([roles[f"{part}.weight"] for part in parts]),
        f"{prefix}in_proj_bias": np.concatenate([roles[f"{part}.bias"] for part in parts]),
        f"{prefix}out_proj.weight": roles["output.weight"],
        f"{prefix}out_proj.bias": roles["output.bias"],
    }


def require_same_forward(layer: AttentionLayer, own_forward: Any) -> None:
    """Refuse a module whose own outputs differ from the layer's by more than rounding."""
    tokens = check_tokens(layer)
    ours = np.stack([layer_forward(layer, x) for x in tokens])
    theirs = own_forward(tokens)
    error = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), TINY)
    if not error <= FORWARD_TOLERANCE:
        raise ValueError(
            "module: must compute plain softmax attention, got a forward that differs from its own "
            f"Q/K/V/O by a relative {error:.1e}"
        )


def evaluation_copy(module: Any) -> Any:
    """A float64 copy in eval mode without hooks: the caller's module is neither changed nor observed."""
    copied = copy.deepcopy(module).eval().cpu().double()
    for part in copied.modules():
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return copied


def _own_forward(module: torch.nn.MultiheadAttention, causal: bool):
    import torch

    copied = evaluation_copy(module)

    def forward(tokens: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(tokens)
        x = x if copied.batch_first else x.transpose(0, 1)
        k = tokens.shape[1]
        mask = torch.triu(torch.ones(k, k, dtype=torch.bool), 1) if causal else None
        with torch.no_grad():
            y, _ = copied(x, x, x, attn_mask=mask, need_weights=False)
        return (y if copied.batch_first else y.transpose(0, 1)).numpy()

    return forward


def _role(name: str) -> str:
    return {"in_proj_bias": "in.bias", "out_proj.bias": "output.bias"}[name]
