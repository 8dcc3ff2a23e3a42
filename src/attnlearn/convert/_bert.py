"""BERT, ALBERT and ViT names: query, key, value and dense, each stored (out, in), head_dim = hidden / heads.

The layer's input is the input of `attention.self`; its output is that of `attention.output.dense` (ALBERT:
`attention.dense`), before dropout, residual and LayerNorm.
Can fail: a layer whose heads have a larger rank than hidden / heads does not fit these models.
"""

from __future__ import annotations

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._calibration import export_tolerance
from attnlearn.convert._projections import linear_tensors
from attnlearn.convert._qkvo import QKVO, to_qkvo

NAMES = {
    "bert": {"query": "self.query", "key": "self.key", "value": "self.value", "output": "output.dense"},
    "albert": {"query": "query", "key": "key", "value": "value", "output": "dense"},
    "vit": {
        "query": "attention.query",
        "key": "attention.key",
        "value": "attention.value",
        "output": "output.dense",
    },
}


def to_bert(
    layer: AttentionLayer,
    *,
    names: str = "bert",
    prefix: str = "attention.",
    tolerance: float | None = None,
) -> dict[str, np.ndarray]:
    """State dict of a BERT attention block (`names`: "bert", "albert" or "vit"), weights (out, in).

    >>> state = to_bert(AttentionLayer.random(2, 6, rank=3))
    >>> sorted(state)[:2]
    ['attention.output.dense.bias', 'attention.output.dense.weight']
    """
    require(names in NAMES, "names", f"must be one of {', '.join(NAMES)}", names)
    roles = linear_tensors(square_heads(layer, names, tolerance))
    return {
        f"{prefix}{NAMES[names][role.split('.')[0]]}.{role.split('.')[1]}": tensor
        for role, tensor in roles.items()
    }


def square_heads(layer: AttentionLayer, layout: str, tolerance: float | None) -> QKVO:
    """Factors of head dimension dim / num_heads, for layouts that know no other; refused when they do not fit."""
    d, m = layer.dim, layer.num_heads
    require(layer.out_dim == d, "layer", f"must have out_dim = dim = {d} for layout {layout}", layer.out_dim)
    require(d % m == 0, "layer", f"must have a number of heads that divides dim = {d} for layout {layout}", m)
    tolerance = export_tolerance(layer.dtype) if tolerance is None else tolerance
    rank = layer.factors(tolerance=tolerance).query.shape[2]
    rule = f"must have heads of rank at most dim / heads = {d // m} for layout {layout} (qkvo and qkv_proj hold any)"
    require(rank <= d // m, "layer", rule, f"rank {rank}")
    return to_qkvo(layer, rank=d // m, tolerance=tolerance)
