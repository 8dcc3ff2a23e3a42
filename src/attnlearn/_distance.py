"""How far two layers are apart, in parameters, up to everything that input and output cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from attnlearn._canonical import Support, on_support
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.scores import words

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


OFFSETS = 16
"""Offsets up to here, either way, are compared when none are given and scores depend on them: the sequences of most tests and
examples are no longer."""


def distance(
    a: AttentionLayer,
    b: AttentionLayer,
    *,
    support: Support | None = None,
    offsets: Sequence[float] | None = None,
) -> Distance:
    """Compare two layers after `canonical()`; errors are relative to the norms of the heads of `b`.

    Each field is the worst matched head's Frobenius error over that head's own norm; biases over the larger
    of their own norm and 1e-3 of the layer's. A Theta of exactly zero, in either layer, has no norm to compare
    with: its error is relative to the largest Theta of `b`. `support` (mean and basis of the affine span of the tokens)
    compares only what such tokens can show. Where scores depend on positions, theta is the worst over `offsets` (by default
    those up to 16 that the mask lets through), and query_bias also holds what a key adds by its offset alone
    and what else shows: sinks, and the quadratic forms of norms.

    >>> layer = AttentionLayer.random(3, 4, seed=2)
    >>> moved = layer.replace(theta=layer.theta[::-1], w=layer.w[::-1], query_bias=layer.query_bias[::-1])
    >>> distance(layer, moved).max
    0.0
    """
    for name, layer in (("a", a), ("b", b)):
        require(isinstance(layer, AttentionLayer), name, "must be an AttentionLayer", layer)
    require((a.dim, a.out_dim) == (b.dim, b.out_dim), "b", f"must map {a.dim} to {a.out_dim} dimensions", b)
    require(a.causal == b.causal, "b", f"must have causal={a.causal} like a", b)
    require(a.visible == b.visible, "b", f"must have the mask of a, {a.visible}", b)
    require(a.form.rule == b.form.rule, "b", f"must make scores as a does ({words(a.form)})", words(b.form))
    offsets = _offsets(a, b) if offsets is None else offsets
    require(len(offsets) > 0, "offsets", "must hold at least one", offsets)
    if support is not None:
        support = Support(*support)
        a, b = on_support(a, support), on_support(b, support)
    a, b = a.canonical().astype(np.float64), b.canonical().astype(np.float64)
    theta, w, query_bias = _relative_errors(a, b, offsets)
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


def _offsets(a: AttentionLayer, b: AttentionLayer) -> Sequence[float]:
    """The offsets that are compared when none are given: 0 alone if scores do not depend on them."""
    if a.plain_scores and b.plain_scores:
        return (0,)
    most = OFFSETS if a.window is None else min(OFFSETS, a.window - 1)
    return range(-most, 1 if a.causal and not a.visible.prefix else most + 1)


def _relative_errors(
    a: AttentionLayer, b: AttentionLayer, offsets: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors of every head of a (row) against every head of b (column) in theta, w and query bias, the worst over offsets."""
    shift = [_invisible(layer, offsets) for layer in (a, b)]
    beyond = [layer.form.beyond() for layer in (a, b)]
    theta, bias = (np.zeros((a.num_heads, b.num_heads)) for _ in range(2))
    sizes, bias_sizes, own = np.zeros(b.num_heads), np.zeros(b.num_heads), np.zeros(a.num_heads)
    for offset in offsets:
        (one, c), (other, e) = a.scores_at(offset), b.scores_at(offset)
        first = np.concatenate([c, _by_offset(a, offset) - shift[0], beyond[0]], axis=1)
        second = np.concatenate([e, _by_offset(b, offset) - shift[1], beyond[1]], axis=1)
        theta = np.maximum(theta, _errors(one, other))
        bias = np.maximum(bias, _errors(first, second))
        sizes += np.linalg.norm(other, axis=(1, 2)) ** 2 / len(offsets)
        bias_sizes += np.linalg.norm(second, axis=1) ** 2 / len(offsets)
        own += np.linalg.norm(one, axis=(1, 2))
    sizes = np.sqrt(sizes)
    norms = np.where(np.logical_and.outer(own > 0, sizes > 0), sizes, sizes.max())
    floor = np.maximum(np.sqrt(bias_sizes), BIAS_FLOOR * np.linalg.norm(sizes))
    return (
        _ratios(theta, norms),
        _ratios(_errors(a.w, b.w), np.linalg.norm(b.w, axis=(1, 2))),
        _ratios(bias, floor),
    )


def _invisible(layer: AttentionLayer, offsets: Sequence[float]) -> np.ndarray:
    """What all keys of a query share (m, d + 1), which no plain softmax shows; nothing where scores are more than bilinear forms."""
    shared = np.mean([_by_offset(layer, at) for at in offsets], axis=0)
    return np.zeros_like(shared) if layer.form.rule else shared


def _by_offset(layer: AttentionLayer, offset: float) -> np.ndarray:
    """What a key adds by its offset alone (m, d + 1)."""
    meets, number = layer.form.bias_at(offset)
    return np.concatenate([meets, number[:, None]], axis=1)


def _errors(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Norms of all differences, one pair at a time: the full table of differences would take m^2 d^2 memory."""
    return np.array([[float(np.linalg.norm(p - q)) for q in second] for p in first])


def _ratios(errors: np.ndarray, norms: np.ndarray) -> np.ndarray:
    wide = np.broadcast_to(norms, errors.shape)
    return np.array([[_ratio(*pair) for pair in zip(*rows)] for rows in zip(errors.tolist(), wide.tolist())])


def _ratio(error: float, norm: float) -> float:
    if error == 0.0:
        return 0.0
    return error / norm if norm > 0 else np.inf
