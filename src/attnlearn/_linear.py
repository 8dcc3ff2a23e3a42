"""The linear-attention layer: F(X)_a = sum_i (x_a^T Theta_i + c_i^T) G_a W_i + b, G_a = sum of x_b x_b^T over the visible keys b.

It is an `AttentionLayer` without the softmax: a key's weight is its score. The function is linear in the products of the
entries of Theta_i and W_i, so least squares finds the best one (`recover(..., method="linear")`). Cost of a call: as for
an `AttentionLayer`. What can fail: weights do not sum to one, so outputs grow with the number of keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from attnlearn._attention import Attention, evaluate
from attnlearn._base import Layer
from attnlearn._layer import AttentionLayer
from attnlearn._parts import require_plain
from attnlearn._types import ArrayLike, Outputs
from attnlearn.scores import Visible


class LinearAttention(Attention):
    """A linear layer as it is evaluated: the weight of a visible key is its score."""

    __slots__ = ()

    def patterns(self, x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Weights (n, query, heads, key) of one chunk; zero for keys that are not visible."""
        weights = self.logits(x)
        k = weights.shape[-1]
        if self.causal:
            weights *= np.tril(np.ones((k, k), weights.dtype))[:, None, :]
        if mask is not None:
            weights *= mask[:, None, None, :]
        return weights


class LinearAttentionLayer(Layer):
    """A multi-head linear-attention layer; the same calls as an `AttentionLayer`, without the softmax.

    >>> layer = LinearAttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> layer(np.ones((5, 3, 4))).shape
    (5, 3, 4)
    """

    __slots__ = ()
    kind: ClassVar[str] = "linear attention layer"

    def _fill(self, form: Any, w: ArrayLike, output_bias: ArrayLike | None, visible: Visible) -> None:
        super()._fill(form, w, output_bias, visible)
        require_plain(self, "layer")

    @classmethod
    def _with_weights_of(cls, layer: AttentionLayer) -> LinearAttentionLayer:
        return cls(*layer.parameters, causal=layer.causal)

    @classmethod
    def random(cls, num_heads: int, dim: int, **options: Any) -> LinearAttentionLayer:
        """A random layer with the weights of `AttentionLayer.random`, which takes the same options.

        >>> LinearAttentionLayer.random(2, 6, rank=2, seed=1)
        LinearAttentionLayer(num_heads=2, dim=6, out_dim=6, causal=False, dtype=float64)
        """
        return cls._with_weights_of(AttentionLayer.random(num_heads, dim, **options))

    def __call__(self, x: ArrayLike, mask: ArrayLike | None = None) -> Outputs:
        """Outputs (n, k, d_out); with `mask` (True where a token is real) padded rows are zero."""
        tokens, keep, single = self._tokens(x, mask)
        own = self.astype(tokens.dtype)  # tokens may be wider than the layer: nothing is narrowed
        kernel = LinearAttention(own.form, own.w, own.output_bias, own.causal)
        outputs = evaluate("outputs", kernel, tokens, keep, (tokens.shape[1], self.out_dim))
        return outputs[0] if single else outputs

    def save(self, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None) -> None:
        """Write the layer as safetensors; its format is not that of an `AttentionLayer`, so neither is read as the other.

        >>> import tempfile; path = tempfile.mkdtemp() + "/layer.safetensors"
        >>> layer = LinearAttentionLayer.random(2, 4); layer.save(path)
        >>> LinearAttentionLayer.load(path) == layer
        True
        """
        from attnlearn._storage import LINEAR_FORMAT, save_layer

        save_layer(self, path, provenance, LINEAR_FORMAT)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearAttentionLayer:
        """Read a layer written by `save`."""
        from attnlearn._storage import LINEAR_FORMAT, load_layer

        return cls._with_weights_of(load_layer(path, LINEAR_FORMAT))

    def summary_json(self) -> dict[str, Any]:
        """Shapes, and norms and ranks of every head, for the JSON result."""
        from attnlearn._maps import head_maps
        from attnlearn._summary import summarize

        return {
            "shapes": {name: list(array.shape) for name, array in self.parameters._asdict().items()},
            "summary": {
                "kind": self.kind,
                "causal": self.causal,
                "dtype": str(self.dtype),
                "heads": [asdict(head) for head in summarize(self)],
                "maps": head_maps(theta=self.theta, w=self.w),
            },
        }
