"""The attention layer: F(X) = sum_i softmax(X Theta_i X^T + 1 (X c_i)^T) X W_i + b.

`AttentionLayer` holds what input and output can show: Theta_i (scores), c_i (query bias seen from the keys),
W_i (value and output projections multiplied) and b. Key biases are invisible and value biases show only
through b, so neither appears. Scores that depend on positions are members of `attnlearn.scores`; a layer of them comes from
`from_scores`, and its matrices are those of an offset, `scores_at`. What a layer holds is in `_base`.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Attention, evaluate
from attnlearn._base import Layer
from attnlearn._types import ArrayLike, Outputs
from attnlearn.scores import Visible, as_visible, build, describe
from attnlearn.scores._rotation import as_positions


class Factors(NamedTuple):
    """Balanced factors of a layer: Theta_i = query_i key_i^T, W_i = value_i output_i, c_i = key_i bias_i."""

    query: Float[np.ndarray, "m d r"]
    key: Float[np.ndarray, "m d r"]
    value: Float[np.ndarray, "m d r"]
    output: Float[np.ndarray, "m r o"]
    query_bias: Float[np.ndarray, "m r"]
    output_bias: Float[np.ndarray, "o"]


class AttentionLayer(Layer):
    """A multi-head attention layer in the form that input and output can show.

    `layer(x)` maps tokens (n, k, d) to outputs (n, k, d_out); a single sequence (k, d) is also understood.
    Biases left out are zero. The arrays are read-only copies.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> layer(np.ones((5, 3, 4))).shape
    (5, 3, 4)
    """

    __slots__ = ()

    @classmethod
    def from_scores(
        cls,
        scores: Any,
        w: ArrayLike,
        output_bias: ArrayLike | None = None,
        *,
        causal: bool | Visible = False,
        window: int | None = None,
        prefix: int = 0,
    ) -> AttentionLayer:
        """A layer whose heads score pairs by any member of `attnlearn.scores`: bilinear, rotary, relative.

        A query sees keys fewer than `window` places away and, under a causal mask, the first `prefix` keys.

        >>> from attnlearn.scores import Rotary, Rotation
        >>> scores = Rotary(np.ones((2, 5, 4)), np.ones((2, 5, 4)), Rotation((1.0, 0.01)))
        >>> AttentionLayer.from_scores(scores, np.ones((2, 4, 4)), causal=True)
        AttentionLayer(num_heads=2, dim=4, out_dim=4, causal=True, dtype=float64, rotary positions (2 pairs))
        """
        return cls._of_scores(scores, w, output_bias, as_visible(causal, window, prefix))

    @property
    def window(self) -> int | None:
        """A query sees keys fewer than this many places away; None when it sees all."""
        return self.visible.window

    def chosen(self, heads: Any, w: np.ndarray | None = None) -> AttentionLayer:
        """The layer of some heads, in that order, perhaps with other projections.

        >>> AttentionLayer.random(3, 4).chosen([2, 0]).num_heads
        2
        """
        own = {name: array[heads] for name, array in self.form.arrays().items()}
        form = build(describe(self.form), own)
        projections = self.w[heads] if w is None else w
        return AttentionLayer.from_scores(form, projections, self.output_bias, causal=self.visible)

    def __call__(
        self, x: ArrayLike, mask: ArrayLike | None = None, positions: ArrayLike | None = None
    ) -> Outputs:
        """Outputs (n, k, d_out); with `mask` (True where a token is real) padded rows are zero.

        `positions` are those of the tokens, (k,) or (n, k), by default 0 .. k-1; only scores with positions ask for them.
        """
        tokens, keep, single = self._tokens(x, mask)
        return self._evaluate("outputs", tokens, keep, single, (tokens.shape[1], self.out_dim), positions)

    def patterns(
        self, x: ArrayLike, mask: ArrayLike | None = None, positions: ArrayLike | None = None
    ) -> Float[np.ndarray, "n m k k"]:
        """Attention weights (n, heads, query, key).

        >>> AttentionLayer.random(2, 4).patterns(np.ones((1, 3, 4))).sum(-1).round(6).tolist()
        [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]
        """
        tokens, keep, single = self._tokens(x, mask)
        k = tokens.shape[1]
        return self._evaluate("patterns", tokens, keep, single, (self.num_heads, k, k), positions)

    def scores(self, x: ArrayLike, positions: ArrayLike | None = None) -> Float[np.ndarray, "n m k k"]:
        """Scores before the softmax (n, heads, query, key); no mask is applied.

        >>> AttentionLayer.random(2, 4).scores(np.ones((1, 3, 4))).shape
        (1, 2, 3, 3)
        """
        tokens, _, single = self._tokens(x, None)
        k = tokens.shape[1]
        return self._evaluate("scores", tokens, None, single, (self.num_heads, k, k), positions)

    def _evaluate(self, kernel, tokens, mask, single, tail, positions):
        own = self if tokens.dtype == self.dtype else self.astype(tokens.dtype)  # nothing is narrowed
        places = None if positions is None else as_positions(positions, *tokens.shape[:2])
        layer = Attention(own.form, own.w, own.output_bias, own.visible, places)
        result = evaluate(kernel, layer, tokens, mask, tail)
        return result[0] if single else result

    def canonical(self, tolerance: float | None = None) -> AttentionLayer:
        """The same function with heads merged, dropped and ordered so that equal layers look equal.

        Heads whose (Theta, c) agree to `tolerance` (relative; default 100 machine epsilons) are merged, heads
        with W = 0 are dropped, and the rest is ordered by ‖Theta‖ ‖W‖. Merging moves an output row by at most
        (‖dTheta‖ r^2 + ‖dc‖ r) r ‖W‖ for tokens of norm at most r.

        >>> twice = AttentionLayer(np.ones((2, 3, 3)), np.ones((2, 3, 3)))
        >>> twice.canonical().num_heads
        1
        """
        from attnlearn._canonical import canonical

        return canonical(self, tolerance)

    def factors(self, rank: int | None = None, tolerance: float = 1e-6) -> Factors:
        """Balanced Q, K, V, O factors of the given rank (default: the smallest that fits to `tolerance`).

        A rank that loses more than `tolerance` of any head's norm is refused.

        >>> AttentionLayer.random(2, 8, rank=3).factors().query.shape
        (2, 8, 3)
        """
        from attnlearn._canonical import balanced_factors

        return balanced_factors(self, rank, tolerance)

    @classmethod
    def random(
        cls,
        num_heads: int,
        dim: int,
        rank: int | None = None,
        scale: float = 2.0,
        bias: bool = False,
        seed: int = 0,
        causal: bool = False,
    ) -> AttentionLayer:
        """A random layer: Theta_i = G1 G2^T with ‖Theta_i‖_F = scale, ‖W_i‖_F = sqrt(dim / num_heads).

        For tokens of identity covariance `scale` is the standard deviation of the scores. With `bias` the
        query biases have norm scale / 2 and the output bias norm 1.

        >>> AttentionLayer.random(num_heads=2, dim=6, rank=2, seed=1)
        AttentionLayer(num_heads=2, dim=6, out_dim=6, causal=False, dtype=float64)
        """
        from attnlearn._random import random_layer

        return random_layer(num_heads, dim, rank, scale, bias, seed, causal)

    def save(self, path: str | os.PathLike[str], provenance: Any = None, support: Any = None) -> None:
        """Write the layer as safetensors with metadata (a mapping); the file appears whole or not at all.

        `support` is the span of the tokens behind it (`stats["support"]`): `compare` then leaves out what these cannot show.

        >>> import tempfile; path = tempfile.mkdtemp() + "/layer.safetensors"
        >>> layer = AttentionLayer.random(2, 4); layer.save(path)
        >>> AttentionLayer.load(path) == layer
        True
        """
        from attnlearn._storage import save_layer

        save_layer(self, path, provenance, support=support)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AttentionLayer:
        """Read a layer written by `save`; `attnlearn.load` also reads models' own layouts."""
        from attnlearn._storage import load_layer

        return load_layer(path)

    def _repr_html_(self) -> str:
        from attnlearn._summary import layer_html

        return layer_html(self)
