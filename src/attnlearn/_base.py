"""What every layer holds: scores, projections W_i, an output bias b and a mask, immutable and compared by value.

`AttentionLayer` and `LinearAttentionLayer` differ only in how they are evaluated and kept. A layer is for JAX a pytree with NumPy
leaves: its class is registered when a layer is made and the caller has imported JAX, which nothing here does.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Self

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._errors import require
from attnlearn._parts import frozen, put_together, taken_apart
from attnlearn._precision import as_mask, require_finite, to_numpy
from attnlearn._types import ArrayLike, Mask, OutputBias, Projection, QueryBias, Theta, Tokens
from attnlearn.scores import Bilinear, Shown, Visible, as_visible, build, describe, words


class Layer:
    """The parameters of a layer; subclasses evaluate it."""

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
            _register_pytree(type(self))

    @classmethod
    def _of_scores(cls, scores: Any, w: ArrayLike, output_bias: ArrayLike | None, visible: Visible) -> Self:
        """The layer whose heads score pairs by this member of `attnlearn.scores`."""
        layer = object.__new__(cls)
        if isinstance(scores, Bilinear):
            layer.__init__(scores.theta(), w, scores.c, output_bias, visible)
        else:
            layer._fill(scores, w, output_bias, visible)
        return layer

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: make a new one with replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    # Pytree protocol: leaves may be tracers, so unflattening does not validate.
    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Visible, str]]:
        """Leaves and static part, for JAX."""
        return taken_apart(self)

    @classmethod
    def tree_unflatten(cls, static: tuple[Visible, str], leaves: Any) -> Self:
        """Inverse of `tree_flatten`, for JAX."""
        layer, names = object.__new__(cls), ("form", "w", "output_bias", "visible")
        for name, value in zip(names, put_together(static, leaves), strict=True):
            object.__setattr__(layer, name, value)
        return layer

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self)._again, (self.arrays(), describe(self.form), tuple(self.visible)))

    @classmethod
    def _again(cls, arrays: dict[str, Any], description: dict[str, Any], visible: tuple[Any, ...]) -> Self:
        """The layer of named arrays and a description of its scores: how pickles hold it."""
        form = build(description, arrays)
        return cls._of_scores(form, arrays["w"], arrays["output_bias"], Visible(*visible))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        if describe(self.form) != describe(other.form) or self.visible != other.visible:
            return False
        pairs = zip(self.arrays().values(), other.arrays().values(), strict=True)
        return self.dtype == other.dtype and all(np.array_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        return hash((type(self), self.visible, *(array.tobytes() for array in self.arrays().values())))

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name: those of the scores, then w and output_bias.

        >>> from attnlearn import AttentionLayer
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

    def scores_at(self, offset: float) -> Shown:
        """Theta_i(D) and c_i(D) of pairs at the offset D = position of the key minus position of the query.

        >>> from attnlearn import AttentionLayer
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

    def replace(self, **changes: Any) -> Self:
        """A new layer with some of its arrays, its scores (`form`), or causal, window and prefix changed.

        >>> from attnlearn import AttentionLayer
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
            return type(self)(**arrays, causal=visible)
        w, output_bias = arrays.pop("w"), arrays.pop("output_bias")
        return self._of_scores(build(describe(form), arrays), w, output_bias, visible)

    def astype(self, dtype: Any) -> Self:
        """The layer in float32 or float64.

        >>> from attnlearn import AttentionLayer
        >>> AttentionLayer.random(2, 4).astype(np.float32).dtype
        dtype('float32')
        """
        return self.replace(**{name: array.astype(dtype) for name, array in self.arrays().items()})

    def _tokens(self, x: ArrayLike, mask: ArrayLike | None) -> tuple[Tokens, Mask | None, bool]:
        single = (tokens := to_numpy(x, "x")).ndim == 2
        tokens = tokens[None] if single else tokens
        rule = f"must have shape (n, tokens, {self.dim}) or (tokens, {self.dim})"
        require(tokens.ndim == 3 and tokens.shape[2] == self.dim, "x", rule, tokens)
        require(tokens.shape[1] >= 1, "x", "must hold at least one token per sequence", tokens)
        require_finite(tokens, "x")
        tokens = tokens.astype(np.result_type(tokens, self.dtype), copy=False)
        return tokens, None if mask is None else as_mask(mask, tokens), single

    def __repr__(self) -> str:
        more = [words(self.form)] * (not self.plain_scores)
        more += [
            f"{name}={value}" for name, value in self.visible._asdict().items() if name != "causal" and value
        ]
        return (
            f"{type(self).__name__}(num_heads={self.num_heads}, dim={self.dim}, out_dim={self.out_dim}, "
            f"causal={self.causal}, dtype={self.dtype}{''.join(f', {part}' for part in more)})"
        )


@cache
def _register_pytree(kind: type[Layer]) -> None:
    """Tell JAX, once, how a layer of this kind is taken apart and put together."""
    from attnlearn._jax import jax

    jax.tree_util.register_pytree_node_class(kind)
