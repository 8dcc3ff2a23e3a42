"""The numerical self-check of every converter: the layer against a direct Q/K/V/O computation.

A converter describes its source by four maps in the source's own orientation (`Source`). `self_check` then
computes attention twice on a few random tokens, in float64 and NumPy: head by head from queries, keys and
values, as any textbook does, and from (Theta, c, W, b). Cost: a few products of the source's matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._errors import AttnlearnError
from attnlearn._layer import AttentionLayer
from attnlearn.convert._calibration import CHECK_SCORE, CHECK_SEQUENCES, CHECK_TOKENS, check_tolerance

TINY = np.finfo(float).tiny

Map = Callable[[np.ndarray], np.ndarray]


class Source(NamedTuple):
    """Attention as its source computes it; key and value heads may be shared by groups of query heads."""

    query: Map  # (tokens, d) -> (tokens, heads * head_dim)
    key: Map
    value: Map
    output: Map  # (tokens, heads * value_dim) -> (tokens, d_out)
    num_heads: int
    num_kv_heads: int
    scale: float
    causal: bool


def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> Map:
    """x -> x weight^T + bias, the convention of torch's Linear: weight is (out, in)."""
    matrix = weight.astype(np.float64)
    return lambda x: x @ matrix.T if bias is None else x @ matrix.T + bias.astype(np.float64)


def rows(weight: np.ndarray, bias: np.ndarray | None = None) -> Map:
    """x -> x weight + bias: weight is (in, out)."""
    matrix = weight.astype(np.float64)
    return lambda x: x @ matrix if bias is None else x @ matrix + bias.astype(np.float64)


def direct_forward(source: Source, x: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "k o"]:
    """Multi-head attention of one sequence, head by head, from queries, keys and values."""
    k = len(x)
    query = source.query(x).reshape(k, source.num_heads, -1)
    key, value = (part(x).reshape(k, source.num_kv_heads, -1) for part in (source.key, source.value))
    group = source.num_heads // source.num_kv_heads
    mixed = []
    for head in range(source.num_heads):
        scores = source.scale * query[:, head] @ key[:, head // group].T
        mixed.append(_softmax(scores, source.causal) @ value[:, head // group])
    return source.output(np.concatenate(mixed, axis=1))


def layer_forward(layer: AttentionLayer, x: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "k o"]:
    """The layer on one sequence, in float64 NumPy (nothing to compile for five tokens)."""
    theta, w, query_bias, output_bias = (np.asarray(p, np.float64) for p in layer.parameters)
    outputs = np.tile(output_bias, (len(x), 1))
    for head in range(layer.num_heads):
        scores = x @ theta[head] @ x.T + (x @ query_bias[head])[None, :]
        outputs += _softmax(scores, layer.causal) @ x @ w[head]
    return outputs


def check_tokens(layer: AttentionLayer) -> Float[np.ndarray, "n k d"]:
    """Random tokens on which the scores reach `CHECK_SCORE` and no more."""
    rng = np.random.default_rng(0xC4EC)
    x = rng.standard_normal((CHECK_SEQUENCES, CHECK_TOKENS, layer.dim))
    quadratic = np.abs(np.einsum("nad,mde,nbe->nmab", x, layer.theta, x, optimize=True)).max()
    affine = np.abs(np.einsum("nbd,md->nmb", x, layer.query_bias)).max()
    # t^2 quadratic + t affine = CHECK_SCORE, written without cancellation; a layer without scores keeps t = 1.
    if quadratic + affine == 0:
        return x
    return x * (2 * CHECK_SCORE / (affine + np.sqrt(affine**2 + 4 * quadratic * CHECK_SCORE)))


def self_check(layer: AttentionLayer, source: Source) -> AttentionLayer:
    """`layer` (float64), unless it differs from its source by more than rounding: then an `AttnlearnError`."""
    with np.errstate(over="ignore", invalid="ignore"):
        tokens = check_tokens(layer)
        wanted = np.stack([direct_forward(source, x) for x in tokens])
        ours = np.stack([layer_forward(layer, x) for x in tokens])
        # A value bias that the output bias cancels leaves small outputs with the rounding of large ones.
        bias = source.output(np.zeros((1, source.num_heads * _value_dim(source, tokens))))
        error = np.abs(ours - wanted).max() / max(np.abs(wanted).max(), np.abs(bias).max(), TINY)
        tolerance = check_tolerance(*_sizes(source, tokens))
    if not tolerance < 1:
        raise AttnlearnError(
            "converter self-check failed: queries and keys cancel from numbers too large for float64"
        )
    if not error <= tolerance:
        raise AttnlearnError(
            f"converter self-check failed: the layer differs from Q/K/V/O by a relative {error:.1e}"
        )
    return layer


def _value_dim(source: Source, tokens: np.ndarray) -> int:
    return source.value(tokens[0]).shape[1] // source.num_kv_heads


def _sizes(source: Source, tokens: np.ndarray) -> tuple[int, float]:
    """Length of the inner sums, and the largest score that queries and keys could make."""
    query, key = (np.concatenate([part(x) for x in tokens]) for part in (source.query, source.key))
    largest = [float(np.linalg.norm(array, axis=1).max()) for array in (query, key)]
    return max(tokens.shape[2], query.shape[1]), source.scale * largest[0] * largest[1]


def _softmax(scores: np.ndarray, causal: bool) -> np.ndarray:
    if causal:
        scores = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
