"""BERT, ALBERT and ViT names: query, key, value and dense, each stored (out, in), head_dim = hidden / heads.

The layer's input is the input of `attention.self`; its output is that of `attention.output.dense` (ALBERT:
`attention.dense`), before dropout, residual and LayerNorm.
Can fail: a layer whose heads have a larger rank than hidden / heads does not fit these models.
"""

from __future__ import annotations

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
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
    arrays = to_qkvo(layer, scale=(d // m) ** -0.5, tolerance=tolerance)
    rank = arrays.wq.shape[2]
    rule = f"must have heads of rank at most dim / heads = {d // m} (query_bias included) for layout {layout}"
    require(rank <= d // m, "layer", rule, rank)
    return _widened(arrays, d // m)


def _widened(arrays: QKVO, width: int) -> QKVO:
    """The same heads with zero columns up to the head dimension `width`."""
    missing = width - arrays.wq.shape[2]
    last, middle, bias = (
        ((0, 0), (0, 0), (0, missing)),
        ((0, 0), (0, missing), (0, 0)),
        ((0, 0), (0, missing)),
    )
    pads = {"wq": last, "wk": last, "wv": last, "wo": middle, "bq": bias, "bk": bias, "bv": bias}
    return arrays._replace(**{name: np.pad(getattr(arrays, name), pad) for name, pad in pads.items()})
