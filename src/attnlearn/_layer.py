"""The attention layer: F(X) = sum_i softmax(X Theta_i X^T + 1 (X c_i)^T) X W_i + b.

`AttentionLayer` holds what input and output can show: Theta_i (scores), c_i (query bias seen from the keys),
W_i (value and output projections multiplied) and b. Key biases are invisible and value biases show only
through b, so neither appears. It is immutable, and for JAX a pytree with NumPy leaves: the class is registered when a layer
is made and the caller has imported JAX, which nothing here does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Attention, Parameters, evaluate
from attnlearn._errors import require
from attnlearn._precision import common_dtype, require_finite, to_numpy
from attnlearn._types import ArrayLike, Mask, OutputBias, Outputs, Projection, QueryBias, Theta, Tokens
from attnlearn.scores import Bilinear


class Factors(NamedTuple):
    """Balanced factors of a layer: Theta_i = query_i key_i^T, W_i = value_i output_i, c_i = key_i bias_i."""

    query: Float[np.ndarray, "m d r"]
    key: Float[np.ndarray, "m d r"]
    value: Float[np.ndarray, "m d r"]
    output: Float[np.ndarray, "m r o"]
    query_bias: Float[np.ndarray, "m r"]
    output_bias: Float[np.ndarray, "o"]


class AttentionLayer:
    """A multi-head attention layer in the form that input and output can show.

    `layer(x)` maps tokens (n, k, d) to outputs (n, k, d_out); a single sequence (k, d) is also understood.
    Biases left out are zero. The arrays are read-only copies.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> layer(np.ones((5, 3, 4))).shape
    (5, 3, 4)
    """

    __slots__ = ("causal", "output_bias", "query_bias", "theta", "w")

    theta: Theta
    w: Projection
    query_bias: QueryBias
    output_bias: OutputBias
    causal: bool

    def __init__(
        self,
        theta: ArrayLike,
        w: ArrayLike,
        query_bias: ArrayLike | None = None,
        output_bias: ArrayLike | None = None,
        causal: bool = False,
    ) -> None:
        theta, w = to_numpy(theta, "theta"), to_numpy(w, "w")
        require(theta.ndim == 3, "theta", "must have shape (heads, d, d)", theta)
        m, d, d2 = theta.shape
        require(m >= 1 and d >= 1 and d == d2, "theta", "must have shape (heads, d, d)", theta)
        require(
            w.ndim == 3 and w.shape[:2] == (m, d) and w.shape[2] >= 1,
            "w",
            f"must have shape ({m}, {d}, d_out) to go with theta",
            w,
        )
        query_bias = (
            np.zeros((m, d), theta.dtype) if query_bias is None else to_numpy(query_bias, "query_bias")
        )
        require(query_bias.shape == (m, d), "query_bias", f"must have shape ({m}, {d})", query_bias)
        o = w.shape[2]
        output_bias = (
            np.zeros(o, theta.dtype) if output_bias is None else to_numpy(output_bias, "output_bias")
        )
        require(output_bias.shape == (o,), "output_bias", f"must have shape ({o},)", output_bias)
        require(isinstance(causal, (bool, np.bool_)), "causal", "must be True or False", causal)
        arrays = {"theta": theta, "w": w, "query_bias": query_bias, "output_bias": output_bias}
        dtype = common_dtype(arrays)
        for name, array in arrays.items():
            require_finite(array, name)
            frozen = np.array(array, dtype, order="C")
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)
        object.__setattr__(self, "causal", bool(causal))
        if "jax" in sys.modules:
            _register_pytree()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"AttentionLayer is immutable: make a new one with replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("AttentionLayer is immutable")

    # Pytree protocol: leaves may be tracers, so unflattening does not validate.
    def tree_flatten(self) -> tuple[Parameters, bool]:
        """Leaves and static part, for JAX."""
        return self.parameters, self.causal

    @classmethod
    def tree_unflatten(cls, causal: bool, leaves: Any) -> AttentionLayer:
        """Inverse of `tree_flatten`, for JAX."""
        layer = object.__new__(cls)
        for name, leaf in zip(Parameters._fields, leaves, strict=True):
            object.__setattr__(layer, name, leaf)
        object.__setattr__(layer, "causal", causal)
        return layer

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (*self.parameters, self.causal))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttentionLayer):
            return NotImplemented
        same = all(np.array_equal(a, b) for a, b in zip(self.parameters, other.parameters, strict=True))
        return same and self.causal == other.causal and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.causal, *(array.tobytes() for array in self.parameters)))

    @property
    def parameters(self) -> Parameters:
        """The four arrays (theta, w, query_bias, output_bias)."""
        return Parameters(self.theta, self.w, self.query_bias, self.output_bias)

    @property
    def form(self) -> Bilinear:
        """How its heads score a pair of tokens, as a member of `attnlearn.scores`."""
        return Bilinear.whole(self.theta, self.query_bias)

    @property
    def num_heads(self) -> int:
        """Number of heads m."""
        return self.theta.shape[0]

    @property
    def dim(self) -> int:
        """Token dimension d."""
        return self.theta.shape[1]

    @property
    def out_dim(self) -> int:
        """Output dimension d_out."""
        return self.w.shape[2]

    @property
    def dtype(self) -> np.dtype:
        """float32 or float64."""
        return self.theta.dtype

    def replace(self, **changes: Any) -> AttentionLayer:
        """A new layer with some of theta, w, query_bias, output_bias, causal changed.

        >>> AttentionLayer.random(2, 4).replace(causal=True).causal
        True
        """
        return AttentionLayer(**{**self.parameters._asdict(), "causal": self.causal, **changes})

    def astype(self, dtype: Any) -> AttentionLayer:
        """The layer in float32 or float64.

        >>> AttentionLayer.random(2, 4).astype(np.float32).dtype
        dtype('float32')
        """
        return self.replace(
            **{name: array.astype(dtype) for name, array in self.parameters._asdict().items()}
        )

    def __call__(self, x: ArrayLike, mask: ArrayLike | None = None) -> Outputs:
        """Outputs (n, k, d_out); with `mask` (True where a token is real) padded rows are zero."""
        tokens, keep, single = self._tokens(x, mask)
        return self._evaluate("outputs", tokens, keep, single, (tokens.shape[1], self.out_dim))

    def patterns(self, x: ArrayLike, mask: ArrayLike | None = None) -> Float[np.ndarray, "n m k k"]:
        """Attention weights (n, heads, query, key).

        >>> AttentionLayer.random(2, 4).patterns(np.ones((1, 3, 4))).sum(-1).round(6).tolist()
        [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]
        """
        tokens, keep, single = self._tokens(x, mask)
        k = tokens.shape[1]
        return self._evaluate("patterns", tokens, keep, single, (self.num_heads, k, k))

    def scores(self, x: ArrayLike) -> Float[np.ndarray, "n m k k"]:
        """Scores before the softmax (n, heads, query, key); no mask is applied.

        >>> AttentionLayer.random(2, 4).scores(np.ones((1, 3, 4))).shape
        (1, 2, 3, 3)
        """
        tokens, _, single = self._tokens(x, None)
        k = tokens.shape[1]
        return self._evaluate("scores", tokens, None, single, (self.num_heads, k, k))

    def _evaluate(self, kernel, tokens, mask, single, tail):
        if tokens.dtype != self.dtype:  # wider than the layer: nothing is narrowed
            return self.astype(tokens.dtype)._evaluate(kernel, tokens, mask, single, tail)
        layer = Attention(self.form, self.w, self.output_bias, self.causal)
        result = evaluate(kernel, layer, tokens, mask, tail)
        return result[0] if single else result

    def _tokens(self, x: ArrayLike, mask: ArrayLike | None) -> tuple[Tokens, Mask | None, bool]:
        tokens = to_numpy(x, "x")
        single = tokens.ndim == 2
        tokens = tokens[None] if single else tokens
        rule = f"must have shape (n, tokens, {self.dim}) or (tokens, {self.dim})"
        require(tokens.ndim == 3 and tokens.shape[2] == self.dim, "x", rule, tokens)
        require(tokens.shape[1] >= 1, "x", "must hold at least one token per sequence", tokens)
        require_finite(tokens, "x")
        tokens = tokens.astype(np.result_type(tokens, self.theta), copy=False)
        return tokens, None if mask is None else as_mask(mask, tokens), single

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
            return cls(theta, w, causal=causal)
        direction = rng.standard_normal((num_heads, dim))
        query_bias = scale / 2 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        output = rng.standard_normal(dim)
        return cls(theta, w, query_bias, output / np.linalg.norm(output), causal=causal)

    def save(self, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None) -> None:
        """Write the layer as safetensors with metadata; the file appears whole or not at all.

        >>> import tempfile; path = tempfile.mkdtemp() + "/layer.safetensors"
        >>> layer = AttentionLayer.random(2, 4); layer.save(path)
        >>> AttentionLayer.load(path) == layer
        True
        """
        from attnlearn._storage import save_layer

        save_layer(self, path, provenance)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AttentionLayer:
        """Read a layer written by `save`; `attnlearn.load` also reads models' own layouts."""
        from attnlearn._storage import load_layer

        return load_layer(path)

    def __repr__(self) -> str:
        return (
            f"AttentionLayer(num_heads={self.num_heads}, dim={self.dim}, out_dim={self.out_dim}, "
            f"causal={self.causal}, dtype={self.dtype})"
        )

    def _repr_html_(self) -> str:
        from attnlearn._summary import layer_html

        return layer_html(self)


@cache
def _register_pytree() -> None:
    """Tell JAX, once, how a layer is taken apart and put together."""
    from attnlearn._jax import jax

    jax.tree_util.register_pytree_node_class(AttentionLayer)


def as_mask(mask: ArrayLike, tokens: Tokens) -> Mask:
    """`mask` as booleans (n, k), True where a token is real; every sequence needs one real token."""
    keep = np.asarray(mask)
    keep = keep[None] if keep.ndim == 1 else keep
    require(keep.dtype == np.bool_, "mask", "must be boolean (True where a token is real)", str(keep.dtype))
    require(keep.shape == tokens.shape[:2], "mask", f"must have shape {tokens.shape[:2]} to go with x", keep)
    require(bool(keep.any(axis=1).all()), "mask", "must keep at least one token of every sequence", keep)
    return keep
