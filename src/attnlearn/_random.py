"""Random layers without positions: see `AttentionLayer.random`."""

from __future__ import annotations

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer


def random_layer(
    num_heads: int, dim: int, rank: int | None, scale: float, bias: bool, seed: int, causal: bool
) -> AttentionLayer:
    """See `AttentionLayer.random`."""
    require(
        isinstance(num_heads, (int, np.integer)) and num_heads >= 1,
        "num_heads",
        "must be >= 1",
        num_heads,
    )
    require(isinstance(dim, (int, np.integer)) and dim >= 1, "dim", "must be an integer >= 1", dim)
    rank = dim if rank is None else rank
    require(1 <= rank <= dim, "rank", f"must be between 1 and dim = {dim}", rank)
    require(np.isfinite(scale) and scale >= 0, "scale", "must be a finite number >= 0", scale)
    rng = np.random.default_rng([seed, 0x1A7E])

    def product(norm: float) -> np.ndarray:
        left, right = rng.standard_normal((2, num_heads, dim, rank))
        matrix = left @ np.swapaxes(right, 1, 2)
        return norm * matrix / np.linalg.norm(matrix, axis=(1, 2), keepdims=True)

    theta, w = product(scale), product(np.sqrt(dim / num_heads))
    if not bias:
        return AttentionLayer(theta, w, causal=causal)
    direction = rng.standard_normal((num_heads, dim))
    query_bias = scale / 2 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    output = rng.standard_normal(dim)
    return AttentionLayer(theta, w, query_bias, output / np.linalg.norm(output), causal=causal)
