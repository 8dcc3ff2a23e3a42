"""Statistics of tokens and outputs, measured in two passes: support, causality, dependence between positions, linear fit.

Tokens are x = mean + basis z with white z. Three departures from independent Gaussian tokens are measured here and modelled by
the moment: means that depend on the position, correlation between positions (separable: cov(z_a, z_b) = K_ab I), and excess
kurtosis of the coordinates (-2 for ±1 tokens). Skewness is measured and not modelled.

Cost: two passes over some thousands of the examples given, O(N k d^2) each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnlearn.data import Chunk, Examples
from attnlearn.engine import Engine
from attnlearn.engine._threads import in_order
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._blocks import LOCAL, over_blocks
from attnlearn.recovery._rows import linear_features
from attnlearn.solve._batch import visible_keys
from attnlearn.solve._tokens import causal_sequences, unexplained
from attnlearn.solve._white import Whitening, cut_short, support_tolerance

_CHUNK = 2048


def token_support(examples: Examples, indices: Int[np.ndarray, "i"], engine: Engine = LOCAL) -> Whitening:
    """White coordinates of the tokens, in one pass wherever the examples are.

    >>> from attnlearn.data import as_examples
    >>> x = np.random.default_rng(0).standard_normal((50, 3, 4)); x[..., 3] = 1.0
    >>> token_support(as_examples(x, x), np.arange(50)).directions
    3
    """
    first = examples.take(indices[:_CHUNK])
    origin = _real(first).mean(axis=0, dtype=np.float64)
    count, total, square, truncated = over_blocks(
        partial(_token_sums, origin), examples, indices, _added, engine
    )
    shift = total / count
    tolerance = support_tolerance(examples.dtype, bool(truncated == count))
    return Whitening.of(origin + shift, square / count - np.outer(shift, shift), tolerance)


def _real(chunk: Chunk) -> Float[np.ndarray, "t d"]:
    return chunk.x.reshape(-1, chunk.x.shape[2]) if chunk.mask is None else chunk.x[chunk.mask]


def _token_sums(origin: np.ndarray, examples: Examples, indices: np.ndarray) -> tuple[np.ndarray, ...]:
    """Number of tokens, their sum and second moment about `origin`, and how many end in 16 zero bits."""
    d = examples.dim
    count, total, square, truncated = 0, np.zeros(d), np.zeros((d, d)), 0
    for chunk in examples.chunks(_CHUNK, indices):
        tokens = _real(chunk)
        truncated += len(tokens) * cut_short(tokens)
        tokens = tokens.astype(np.float64) - origin  # the covariance must not drown in the square of the mean
        count += len(tokens)
        total += tokens.sum(axis=0)
        square += tokens.T @ tokens
    return np.asarray(count), total, square, np.asarray(truncated)


def _added(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(x + y for x, y in zip(a, b))


def looks_causal(examples: Examples, indices: np.ndarray) -> bool:
    """Whether the first row of these examples depends on its own token alone, and the last one does not."""
    return unexplained(*examples.take(indices[: causal_sequences(examples.dim)])).causal


class _Sums(NamedTuple):
    count: np.ndarray  # real tokens at each position
    both: np.ndarray  # sequences in which two positions are real
    first: np.ndarray
    gram: np.ndarray
    third: np.ndarray
    fourth: np.ndarray
    normal: np.ndarray
    right: np.ndarray


class Dependence(NamedTuple):
    """Where tokens differ significantly from independent Gaussian ones, and the linear fit of the outputs."""

    position_mean: Float[np.ndarray, "k r"]
    position_correlation: Float[np.ndarray, "k k"]
    kurtosis: Float[np.ndarray, "r"]
    skewness: Float[np.ndarray, "r"]
    linear: Float[np.ndarray, "f o"]


def dependence(
    examples: Examples, indices: np.ndarray, white: Whitening, causal: bool, engine: Engine = LOCAL
) -> Dependence:
    """One pass: position means and correlations, third and fourth moments, and the linear fit of the outputs."""
    block = partial(_block_sums, white, causal)
    sums = _Sums(*over_blocks(block, examples, indices, _added, engine))
    return _significant(sums, white.directions)


def _block_sums(
    white: Whitening, causal: bool, examples: Examples, indices: np.ndarray
) -> tuple[np.ndarray, ...]:
    total: tuple[np.ndarray, ...] | None = None
    chunks = examples.chunks(_CHUNK, indices)
    for part in in_order(lambda chunk: _chunk_sums(chunk, white, causal), chunks):
        part = tuple(np.asarray(entry, np.float64) for entry in part)
        total = part if total is None else _added(total, part)
    assert total is not None, "a block holds at least one sequence"
    return total


def _chunk_sums(chunk: Chunk, white: Whitening, causal: bool) -> _Sums:
    x, y, mask = chunk
    _, k, _ = x.shape
    z = white.tokens(x, np.float32)
    r, o = z.shape[2], y.shape[2]
    weights = np.ones(z.shape[:2], np.float32) if mask is None else mask.astype(np.float32)
    z = z if mask is None else z * weights[..., None]
    phi = linear_features(z, visible_keys(k, mask, causal)).reshape(len(x) * k, -1)
    phi = phi if mask is None else phi * weights.reshape(-1, 1)
    flat = np.swapaxes(z, 0, 1).reshape(k, -1)
    squares = np.square(z.reshape(-1, r))
    return _Sums(
        weights.sum(axis=0, dtype=np.float64),
        weights.T @ weights,
        z.sum(axis=0, dtype=np.float64),
        flat @ flat.T,
        np.einsum("ir,ir->r", squares, z.reshape(-1, r)),
        np.einsum("ir,ir->r", squares, squares),
        phi.T @ phi,
        phi.T @ y.reshape(-1, o).astype(np.float32),
    )


def _significant(sums: _Sums, r: int) -> Dependence:
    """Means, correlations and kurtosis that chance does not explain; others are set to those of independent Gaussian tokens."""
    seen = np.maximum(sums.count, 1)
    mean = sums.first / seen[:, None]
    excess = seen * np.sum(mean**2, axis=1) / r - 1
    if excess.max() < calibration.SIGNIFICANT * np.sqrt(2 / r):
        mean = np.zeros_like(mean)
    gram = sums.gram / np.maximum(sums.both, 1) / r - mean @ mean.T / r
    correlation = gram / np.maximum(np.diag(gram), np.finfo(np.float32).eps)[:, None]
    chance = calibration.SIGNIFICANT / np.sqrt(np.maximum(sums.both, 1) * r)
    off = ~np.eye(len(gram), dtype=bool)
    if not np.any((np.abs(correlation) > chance) & off & (sums.both > 1)):
        correlation = np.eye(len(gram))
    np.fill_diagonal(correlation, 1.0)
    kurtosis = sums.fourth / sums.count.sum() - 3
    kurtosis[np.abs(kurtosis) < calibration.SIGNIFICANT * np.sqrt(24 / sums.count.sum())] = 0.0
    ridge = np.sqrt(np.finfo(float).eps) * np.trace(sums.normal) / len(sums.normal) * np.eye(len(sums.normal))
    linear = np.linalg.solve(sums.normal + ridge, sums.right)
    return Dependence(mean, correlation, kurtosis, sums.third / sums.count.sum(), linear)


class Rest(NamedTuple):
    """What the linear fit leaves of the outputs: its covariance, its share of their variance, and their spread."""

    covariance: Float[np.ndarray, "o o"]
    share: float
    output_scale: float


def linear_rest(
    examples: Examples, fit: np.ndarray, white: Whitening, causal: bool, linear: Float[np.ndarray, "f o"]
) -> Rest:
    """What the linear fit leaves on some of the examples; a fit in float64 replaces one that float32 limits."""
    wanted = calibration.PLENTY * max(examples.out_dim, 128)
    some = fit[:: max(1, len(fit) * examples.tokens // wanted)]
    rest = _left(examples, some, white, causal, linear.astype(np.float32))
    learned_by_heart = len(some) * examples.tokens < calibration.CLEAR * len(linear)
    if rest.share >= calibration.LINEAR_DIGITS or learned_by_heart:
        return rest
    return _left(examples, some, white, causal, _refitted(examples, some, white, causal))


def _refitted(
    examples: Examples, some: np.ndarray, white: Whitening, causal: bool
) -> Float[np.ndarray, "f o"]:
    """The linear fit of some examples by least squares in float64."""
    parts = [(phi[real], y[real]) for phi, y, real in _linear_rows(examples, some, white, causal, np.float64)]
    phi, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return np.linalg.lstsq(phi, y, rcond=None)[0]


def _linear_rows(
    examples: Examples, some: np.ndarray, white: Whitening, causal: bool, dtype: Any
) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
    """Linear features, outputs and which rows are real, chunk by chunk."""
    for x, y, mask in examples.chunks(_CHUNK, some):
        z = white.tokens(x, dtype)
        z = z if mask is None else z * mask[..., None]
        phi = linear_features(z, visible_keys(x.shape[1], mask, causal))
        real = slice(None) if mask is None else mask.reshape(-1)
        yield phi.reshape(-1, phi.shape[2]), y.reshape(-1, y.shape[2]).astype(np.float64), real


def _left(examples: Examples, some: np.ndarray, white: Whitening, causal: bool, linear: np.ndarray) -> Rest:
    """What given coefficients leave, computed in their precision."""
    o = examples.out_dim
    origin = examples.take(some[:1]).y[0, 0].astype(np.float64)
    rest, total, square, size, rows = np.zeros((o, o)), np.zeros(o), 0.0, 0.0, 0
    for phi, y, real in _linear_rows(examples, some, white, causal, linear.dtype):
        residual = (y - phi @ linear)[real]
        about = y[real] - origin  # the spread must not drown in the square of the mean
        rest += residual.T @ residual
        total += about.sum(axis=0)
        square += np.sum(about**2)
        size += np.sum(y[real] ** 2)
        rows += len(about)
    variance = max(square / rows - np.sum((total / rows) ** 2), 0.0)
    covariance = rest / rows
    if variance <= (4 * np.finfo(examples.dtype).eps) ** 2 * size / rows:  # equal, but for rounding
        return Rest(covariance, 0.0, 0.0)
    return Rest(covariance, float(np.trace(covariance) / variance), float(np.sqrt(variance)))


def nonlinear_share(examples: Examples) -> float:
    """Share of the output variance that a linear fit in the tokens leaves; for few examples, all at once."""
    indices = np.arange(examples.num)
    white = token_support(examples, indices)
    causal = looks_causal(examples, indices)
    linear = dependence(examples, indices, white, causal).linear
    return linear_rest(examples, indices, white, causal, linear).share
