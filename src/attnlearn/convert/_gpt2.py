"""GPT-2: `c_attn` and `c_proj` as Conv1D, stored (in, out) with query, key and value side by side; causal.

Can fail: a Linear of the same name (nanoGPT), stored (out, in), is refused by its shape.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._bert import square_heads
from attnlearn.convert._check import Source, rows, self_check
from attnlearn.convert._qkvo import from_qkvo, require_head_count


def assemble_gpt2(
    tensors: Mapping[str, np.ndarray], num_heads: int, scale: float | None, causal: bool
) -> AttentionLayer:
    """The layer of c_attn (d, 3 d) and c_proj (d, d)."""
    m = require_head_count(num_heads)
    joined, bias = tensors["in.weight"], tensors["in.bias"]
    output, output_bias = tensors["output.weight"], tensors["output.bias"]
    d = joined.shape[0]
    require(joined.shape == (d, 3 * d), "c_attn.weight", "must be (d, 3 d), as Conv1D stores it", joined)
    require(output.shape == (d, d), "c_proj.weight", f"must have shape ({d}, {d})", output)
    require(bias.shape == (3 * d,), "c_attn.bias", f"must have shape ({3 * d},)", bias)
    require(d % m == 0, "num_heads", f"must divide the width {d}", m)
    scale = float((d // m) ** -0.5 if scale is None else scale)
    wq, wk, wv = np.split(joined, 3, axis=1)
    bq, bk, bv = np.split(bias, 3)
    layer = from_qkvo(wq, wk, wv, output, bq, bk, bv, output_bias, scale, num_heads=m, causal=causal)
    both = rows(joined, bias)
    query, key, value = (lambda x, i=i: both(x)[:, i * d : (i + 1) * d] for i in range(3))
    return self_check(layer, Source(query, key, value, rows(output, output_bias), m, m, scale, causal))


def to_gpt2(
    layer: AttentionLayer, *, prefix: str = "attn.", tolerance: float | None = None
) -> dict[str, np.ndarray]:
    """State dict of a GPT-2 attention block; the layer has to be causal, as GPT-2 is.

    >>> to_gpt2(AttentionLayer.random(2, 6, rank=3, causal=True))["attn.c_attn.weight"].shape
    (6, 18)
    """
    require(layer.causal, "layer", "must be causal for layout gpt2", "causal=False")
    arrays = square_heads(layer, "gpt2", tolerance)
    d = layer.dim
    weights = [np.moveaxis(w, 0, 1).reshape(d, d) for w in (arrays.wq, arrays.wk, arrays.wv)]
    biases = [np.asarray(b).ravel() for b in (arrays.bq, arrays.bk, arrays.bv)]
    return {
        f"{prefix}c_attn.weight": np.concatenate(weights, axis=1),
        f"{prefix}c_attn.bias": np.concatenate(biases),
        f"{prefix}c_proj.weight": arrays.wo.reshape(d, d),
        f"{prefix}c_proj.bias": layer.output_bias.copy(),
    }
