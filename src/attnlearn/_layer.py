"""The attention layer: F(X) = sum_i softmax(X Theta_i X^T + 1 (X c_i)^T) X W_i + b.

`AttentionLayer` holds what input and output can show: Theta_i (scores), c_i (query bias seen from the keys),
W_i (value and output projections multiplied) and b. Key biases are invisible and value biases show only
through b, so neither appears. Scores that depend on positions are members of `attnlearn.scores`; a layer of them comes from
`from_scores`, and its matrices are those of an offset, `scores_at`. It is immutable, and for JAX a pytree with NumPy leaves:
the class is registered when a layer is made and the caller has imported JAX, which nothing here does.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Attention, Parameters, evaluate
from attnlearn._errors import require
from attnlearn._parts import frozen, put_together, taken_apart
from attnlearn._precision import as_mask, require_finite, to_numpy
from attnlearn._types import ArrayLike, Mask, OutputBias, Outputs, Projection, QueryBias, Theta, Tokens
from attnlearn.scores import Bilinear, Shown, Visible, as_visible, build, describe, words
from attnlearn.scores._rotation import as_positions


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

    __slots__ = ("form", "output_bias", "visible", "w")

    form: Any
    w: Projection
    output_bias: OutputBias
    visible: Visible

    def __init__(
        self,
        theta: ArrayLike,
        w: ArrayLike,
        query_bias: ArrayLike | None = None,
        output_bias: ArrayLike | None = None,
        causal: bool | Visible = False,
    ) -> None:
        theta = to_numpy(theta, "theta")
        require(theta.ndim == 3, "theta", "must have shape (heads, d, d)", theta)
        m, d, d2 = theta.shape
        require(m >= 1 and d >= 1 and d == d2, "theta", "must have shape (heads, d, d)", theta)
        query_bias = (
            np.zeros((m, d), theta.dtype) if query_bias is None else to_numpy(query_bias, "query_bias")
        )
        require(query_bias.shape == (m, d), "query_bias", f"must have shape ({m}, {d})", query_bias)
        self._fill(Bilinear.whole(theta, query_bias), w, output_bias, as_visible(causal))

    def _fill(self, form: Any, w: ArrayLike, output_bias: ArrayLike | None, visible: Visible) -> None:
        for name, value in zip(("form", "w", "output_bias"), frozen(form, w, output_bias), strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "visible", visible)
        if "jax" in sys.modules:
            _register_pytree()

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
        layer = object.__new__(cls)
        if isinstance(scores, Bilinear):
            layer.__init__(scores.theta(), w, scores.c, output_bias, as_visible(causal, window, prefix))
        else:
            layer._fill(scores, w, output_bias, as_visible(causal, window, prefix))
        return layer

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"AttentionLayer is immutable: make a new one with replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("AttentionLayer is immutable")

    # Pytree protocol: leaves may be tracers, so unflattening does not validate.
    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Visible, str]]:
        """Leaves and static part, for JAX."""
        return taken_apart(self)

    @classmethod
    def tree_unflatten(cls, static: tuple[Visible, str], leaves: Any) -> AttentionLayer:
        """Inverse of `tree_flatten`, for JAX."""
        layer, names = object.__new__(cls), ("form", "w", "output_bias", "visible")
        for name, value in zip(names, put_together(static, leaves), strict=True):
            object.__setattr__(layer, name, value)
        return layer

    def __reduce__(self) -> tuple[Any, ...]:
        return (AttentionLayer._again, (self.arrays(), describe(self.form), tuple(self.visible)))

    @staticmethod
    def _again(
        arrays: dict[str, Any], description: dict[str, Any], visible: tuple[Any, ...]
    ) -> AttentionLayer:
        """The layer of named arrays and a description of its scores: how files and pickles hold it."""
        form = build(description, arrays)
        return AttentionLayer.from_scores(form, arrays["w"], arrays["output_bias"], causal=Visible(*visible))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttentionLayer):
            return NotImplemented
        if describe(self.form) != describe(other.form) or self.visible != other.visible:
            return False
        pairs = zip(self.arrays().values(), other.arrays().values(), strict=True)
        return self.dtype == other.dtype and all(np.array_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        return hash((self.visible, *(array.tobytes() for array in self.arrays().values())))

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name: those of the scores, then w and output_bias.

        >>> list(AttentionLayer.random(2, 4).arrays())
        ['theta', 'query_bias', 'w', 'output_bias']
        """
        return {**self.form.arrays(), "w": self.w, "output_bias": self.output_bias}

    @property
    def parameters(self) -> Parameters:
        """The four arrays (theta, w, query_bias, output_bias) of a layer whose scores do not depend on positions."""
        return Parameters(self.theta, self.w, self.query_bias, self.output_bias)

    @property
    def theta(self) -> Theta:
        """Theta_i (m, d, d); scores that depend on positions have one for each offset (`scores_at`)."""
        return self._plain("theta").theta()

    @property
    def query_bias(self) -> QueryBias:
        """c_i (m, d); scores that depend on positions have one for each offset (`scores_at`)."""
        return self._plain("query_bias").c

    def _plain(self, name: str) -> Bilinear:
        if not self.plain_scores:
            raise AttributeError(f"{name}: this layer has {words(self.form)}; see scores_at(offset)")
        return self.form

    @property
    def plain_scores(self) -> bool:
        """Whether scores do not depend on positions."""
        return isinstance(self.form, Bilinear)

    @property
    def causal(self) -> bool:
        """Whether a query sees no key after itself (beyond a prefix)."""
        return self.visible.causal

    @property
    def window(self) -> int | None:
        """A query sees keys fewer than this many places away; None when it sees all."""
        return self.visible.window

    def scores_at(self, offset: float) -> Shown:
        """Theta_i(D) and c_i(D) of pairs at the offset D = position of the key minus position of the query.

        >>> AttentionLayer.random(2, 4).scores_at(-3).theta.shape
        (2, 4, 4)
        """
        return self.form.at(offset)

    @property
    def num_heads(self) -> int:
        """Number of heads m."""
        return self.form.heads

    @property
    def dim(self) -> int:
        """Token dimension d."""
        return self.form.dim

    @property
    def out_dim(self) -> int:
        """Output dimension d_out."""
        return self.w.shape[2]

    @property
    def dtype(self) -> np.dtype:
        """float32 or float64."""
        return self.w.dtype

    def replace(self, **changes: Any) -> AttentionLayer:
        """A new layer with some of its arrays, its scores (`form`), or causal, window and prefix changed.

        >>> AttentionLayer.random(2, 4).replace(causal=True).causal
        True
        """
        mask = self.visible._asdict() | {n: changes.pop(n) for n in Visible._fields if n in changes}
        visible = mask["causal"] if isinstance(mask["causal"], Visible) else as_visible(**mask)
        form = changes.pop("form", self.form)
        arrays = {**form.arrays(), "w": self.w, "output_bias": self.output_bias}
        unknown = set(changes) - set(arrays)
        if unknown:
            raise TypeError(f"replace() got an unexpected keyword argument {min(unknown)!r}")
        arrays |= changes
        if isinstance(form, Bilinear):
            return AttentionLayer(**arrays, causal=visible)
        w, output_bias = arrays.pop("w"), arrays.pop("output_bias")
        return AttentionLayer.from_scores(build(describe(form), arrays), w, output_bias, causal=visible)

    def astype(self, dtype: Any) -> AttentionLayer:
        """The layer in float32 or float64.

        >>> AttentionLayer.random(2, 4).astype(np.float32).dtype
        dtype('float32')
        """
        return self.replace(**{name: array.astype(dtype) for name, array in self.arrays().items()})

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

    def _tokens(self, x: ArrayLike, mask: ArrayLike | None) -> tuple[Tokens, Mask | None, bool]:
        single = (tokens := to_numpy(x, "x")).ndim == 2
        tokens = tokens[None] if single else tokens
        rule = f"must have shape (n, tokens, {self.dim}) or (tokens, {self.dim})"
        require(tokens.ndim == 3 and tokens.shape[2] == self.dim, "x", rule, tokens)
        require(tokens.shape[1] >= 1, "x", "must hold at least one token per sequence", tokens)
        require_finite(tokens, "x")
        tokens = tokens.astype(np.result_type(tokens, self.dtype), copy=False)
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

    def __repr__(self) -> str:
        more = [words(self.form)] * (not self.plain_scores)
        more += [f"{n}={v}" for n, v in (("window", self.window), ("prefix", self.visible.prefix)) if v]
        return (
            f"AttentionLayer(num_heads={self.num_heads}, dim={self.dim}, out_dim={self.out_dim}, "
            f"causal={self.causal}, dtype={self.dtype}{''.join(f', {part}' for part in more)})"
        )

    def _repr_html_(self) -> str:
        from attnlearn._summary import layer_html

        return layer_html(self)


@cache
def _register_pytree() -> None:
    """Tell JAX, once, how a layer is taken apart and put together."""
    from attnlearn._jax import jax

    jax.tree_util.register_pytree_node_class(AttentionLayer)
