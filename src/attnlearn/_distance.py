"""How far two layers are apart, in parameters, up to everything that input and output cannot show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from attnlearn._canonical import Support, on_support
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer

BIAS_FLOOR = 1e-3
"""A bias is measured against the larger of its own norm and this fraction of the layer's: a zero bias has no
norm of its own to be relative to."""


@dataclass(frozen=True)
class HeadMatch:
    """One pair of matched heads (canonical order); an index of None marks a head without a partner."""

    head: int | None
    other: int | None
    theta: float
    w: float
    query_bias: float


@dataclass(frozen=True)
class Distance:
    """Relative errors of the worst matched head; an unmatched head counts as error 1.

    >>> layer = AttentionLayer.random(2, 4)
    >>> distance(layer, layer).max
    0.0
    """

    theta: float
    w: float
    query_bias: float
    output_bias: float
    heads: tuple[HeadMatch, ...]

    @property
    def max(self) -> float:
        """The largest of theta, w, query_bias and output_bias."""
        return max(self.theta, self.w, self.query_bias, self.output_bias)

    @property
    def unmatched(self) -> tuple[HeadMatch, ...]:
        """Heads of either layer that have no partner in the other."""
        return tuple(match for match in self.heads if match.head is None or match.other is None)


def distance(a: AttentionLayer, b: AttentionLayer, *, support: Support | None = None) -> Distance:
    """Compare two layers after `canonical()`; errors are relative to the norms of the heads of `b`.

    Each field is the worst matched head's Frobenius error over that head's own norm; biases over the larger
    of their own norm and 1e-3 of the layer's. A Theta of exactly zero, in either layer, has no norm to compare
    with: its error is relative to the largest Theta of `b`. `support` (mean and basis of the affine span of the tokens)
    compares only what such tokens can show.

    >>> layer = AttentionLayer.random(3, 4, seed=2)
    >>> moved = layer.replace(theta=layer.theta[::-1], w=layer.w[::-1], query_bias=layer.query_bias[::-1])
    >>> distance(layer, moved).max
    0.0
    """
    for name, layer in (("a", a), ("b", b)):
        require(isinstance(layer, AttentionLayer), name, "must be an AttentionLayer", layer)
    require((a.dim, a.out_dim) == (b.dim, b.out_dim), "b", f"must map {a.dim} to {a.out_dim} dimensions", b)
    require(a.causal == b.causal, "b", f"must have causal={a.causal} like a", b)
    if support is not None:
        support = Support(*support)
        a, b = on_support(a, support), on_support(b, support)
    a, b = a.canonical().astype(np.float64), b.canonical().astype(np.float64)
    theta, w, query_bias = _relative_errors(a, b)
    rows, columns = linear_sum_assignment(np.minimum(theta + w + query_bias, 1e6))
    matches = [
        HeadMatch(int(i), int(j), float(theta[i, j]), float(w[i, j]), float(query_bias[i, j]))
        for i, j in zip(rows, columns, strict=True)
    ]
    matches += [
        HeadMatch(i, None, 1.0, 1.0, 1.0) for i in sorted(set(range(a.num_heads)) - set(rows.tolist()))
    ]
    matches += [
        HeadMatch(None, j, 1.0, 1.0, 1.0) for j in sorted(set(range(b.num_heads)) - set(columns.tolist()))
    ]
    floor = BIAS_FLOOR * float(np.linalg.norm(b.w))
    output = np.linalg.norm(a.output_bias - b.output_bias)
    return Distance(
        theta=max(match.theta for match in matches),
        w=max(match.w for match in matches),
        query_bias=max(match.query_bias for match in matches),
        output_bias=_ratio(float(output), max(float(np.linalg.norm(b.output_bias)), floor)),
        heads=tuple(matches),
    )


def _relative_errors(a: AttentionLayer, b: AttentionLayer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors of every head of a (row) against every head of b (column) in theta, w and query bias."""
    sizes = np.linalg.norm(b.theta, axis=(1, 2))
    present = np.logical_and.outer(a.theta.any(axis=(1, 2)), sizes > 0)
    theta_norms = np.where(present, sizes, sizes.max())
    w_norm = np.linalg.norm(b.w, axis=(1, 2))
    bias_norm = np.maximum(np.linalg.norm(b.query_bias, axis=1), BIAS_FLOOR * np.linalg.norm(b.theta))

    def table(first: np.ndarray, second: np.ndarray, norms: np.ndarray) -> np.ndarray:
        # One pair at a time: the full table of differences would take m^2 d^2 memory.
        norms = np.broadcast_to(norms, (len(first), len(second)))
        return np.array(
            [
                [_ratio(float(np.linalg.norm(p - q)), norm) for q, norm in zip(second, row)]
                for p, row in zip(first, norms)
            ]
        )

    return (
        table(a.theta, b.theta, theta_norms),
        table(a.w, b.w, w_norm),
        table(a.query_bias, b.query_bias, bias_norm),
    )


def _ratio(error: float, norm: float) -> float:
    if error == 0.0:
        return 0.0
    return error / norm if norm > 0 else np.inf
