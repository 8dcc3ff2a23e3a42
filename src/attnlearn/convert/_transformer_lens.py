"""TransformerLens: W_Q, W_K, W_V (head, d_model, d_head), W_O (head, d_head, d_model), row convention.

There the QK circuit W_Q W_K^T comes *without* 1 / sqrt(d_head): the scores are divided by `attn_scale`
afterwards. Here Theta includes it. Arrays only, TransformerLens itself is never imported.
"""

from __future__ import annotations

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._types import ArrayLike
from attnlearn.convert._qkvo import from_qkvo, to_qkvo


def from_transformer_lens(
    W_Q: ArrayLike,
    W_K: ArrayLike,
    W_V: ArrayLike,
    W_O: ArrayLike,
    b_Q: ArrayLike | None = None,
    b_K: ArrayLike | None = None,
    b_V: ArrayLike | None = None,
    b_O: ArrayLike | None = None,
    *,
    causal: bool,
    attn_scale: float | None = None,
) -> AttentionLayer:
    """The layer of one block's arrays; `attn_scale` (default sqrt(d_head)) divides the scores.

    W_K and W_V may have fewer heads (`n_key_value_heads`). `causal` is `cfg.attention_dir == "causal"`. Fold
    no LayerNorm into the weights if the tokens were recorded after it.

    >>> rng = np.random.default_rng(0)
    >>> W_Q, W_K, W_V = rng.standard_normal((3, 2, 6, 3)); W_O = rng.standard_normal((2, 3, 6))
    >>> layer = from_transformer_lens(W_Q, W_K, W_V, W_O, causal=True)
    >>> bool(np.allclose(layer.theta[0], W_Q[0] @ W_K[0].T / np.sqrt(3)))
    True
    """
    if attn_scale is not None:
        require(
            np.isfinite(attn_scale) and attn_scale > 0,
            "attn_scale",
            "must be a finite number > 0 (it divides the scores)",
            attn_scale,
        )
    require(np.ndim(W_Q) == 3, "W_Q", "must have shape (heads, d_model, d_head)", W_Q)
    scale = None if attn_scale is None else 1 / attn_scale
    return from_qkvo(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O, scale, causal=causal)


def to_transformer_lens(
    layer: AttentionLayer, *, d_head: int | None = None, prefix: str = "", tolerance: float | None = None
) -> dict[str, np.ndarray]:
    """W_Q, b_Q, ... by name, for `attn_scale` = sqrt(d_head).

    >>> to_transformer_lens(AttentionLayer.random(2, 6, rank=3))["W_O"].shape
    (2, 3, 6)
    """
    arrays = to_qkvo(layer, rank=d_head, tolerance=tolerance)
    names = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
    return {f"{prefix}{name}": np.asarray(array) for name, array in zip(names, arrays[:-1], strict=True)}
