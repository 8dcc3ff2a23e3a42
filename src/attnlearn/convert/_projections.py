"""Separate q_proj, k_proj, v_proj and o_proj or out_proj, each stored (out, in): fairseq, OPT, BART, CLIP, ViT.

Fewer key and value heads (grouped-query attention) are expanded on reading. Weights do not say whether a model
rotates queries and keys: `from_huggingface` looks for it, plain arrays cannot.
Can fail: a head count that does not divide the widths, a bias that is missing beside its partners.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._check import Source, linear, self_check
from attnlearn.convert._qkvo import QKVO, from_qkvo, require_head_count, to_qkvo

PARTS = ("query", "key", "value", "output")


def assemble_linear(
    tensors: Mapping[str, np.ndarray], num_heads: int, scale: float | None, causal: bool
) -> AttentionLayer:
    """The layer of four (out, in) matrices by role; `scale` None is 1 / sqrt(head_dim)."""
    m = require_head_count(num_heads)
    for part in PARTS:
        name = f"{part}.weight"
        require(tensors[name].ndim == 2, name, "must be a matrix (out, in)", tensors[name])
    _require_biases(tensors)
    wq, wk, wv, wo = (tensors[f"{part}.weight"] for part in PARTS)
    bq, bk, bv, bo = (tensors.get(f"{part}.bias") for part in PARTS)
    width = wq.shape[0]
    require(width % m == 0, "num_heads", f"must divide the query width {width}", m)
    scale = float((width // m) ** -0.5 if scale is None else scale)
    layer = from_qkvo(wq.T, wk.T, wv.T, wo.T, bq, bk, bv, bo, scale, num_heads=m, causal=causal)
    maps = (linear(wq, bq), linear(wk, bk), linear(wv, bv), linear(wo, bo))
    return self_check(layer, Source(*maps, m, wk.shape[0] * m // width, scale, causal))


def _require_biases(tensors: Mapping[str, np.ndarray]) -> None:
    """Biases that always come together; a lone one means that its partner was lost, not that it is zero."""
    present = {part for part in ("query", "key", "value") if f"{part}.bias" in tensors}
    rule = "must have biases on query and value together (and on key only beside them)"
    allowed = (set(), {"query", "value"}, {"query", "key", "value"})
    require(present in allowed, "state", rule, f"biases on {' and '.join(sorted(present))} only")


def linear_tensors(arrays: QKVO) -> dict[str, np.ndarray]:
    """Per-head arrays as (out, in) matrices by role."""

    def flat(weight: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.swapaxes(weight, 1, 2).reshape(-1, weight.shape[1]))

    m, s, o = arrays.wo.shape
    tensors = {
        "query.weight": flat(arrays.wq),
        "key.weight": flat(arrays.wk),
        "value.weight": flat(arrays.wv),
        "output.weight": np.ascontiguousarray(arrays.wo.reshape(m * s, o).T),
    }
    biases = {
        "query.bias": arrays.bq,
        "key.bias": arrays.bk,
        "value.bias": arrays.bv,
        "output.bias": arrays.bo,
    }
    return tensors | {name: bias.ravel() for name, bias in biases.items() if bias is not None}


def to_qkv_proj(
    layer: AttentionLayer,
    *,
    head_dim: int | None = None,
    output: str = "o_proj",
    prefix: str = "",
    tolerance: float | None = None,
    kv_heads: int | None = None,
) -> dict[str, np.ndarray]:
    """State dict q_proj, k_proj, v_proj and o_proj or out_proj (`output`), weights (out, in), with biases.

    `head_dim` defaults to the smallest that holds every head (see `to_qkvo`); the scores are to be divided by
    its square root, as every model of this family does. With `kv_heads` consecutive heads share a key and a value.

    >>> state = to_qkv_proj(AttentionLayer.random(2, 6, rank=3), prefix="self_attn.")
    >>> state["self_attn.q_proj.weight"].shape
    (6, 6)
    """
    require(output in ("o_proj", "out_proj"), "output", "must be 'o_proj' or 'out_proj'", output)
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": output}
    roles = linear_tensors(to_qkvo(layer, rank=head_dim, tolerance=tolerance, kv_heads=kv_heads))
    return {
        f"{prefix}{parts[role.split('.')[0]]}.{role.split('.')[1]}": tensor for role, tensor in roles.items()
    }
