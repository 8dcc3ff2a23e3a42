"""Prepare: the tokens' affine support and whitening, how positions depend, and the linear part of the outputs.

Theory, section 3: x = mean + basis z with z white (Whitening), and the best linear fit that the moment must not
see. Three things beyond independent Gaussian tokens are measured here and modelled by the moment: means that
depend on the position, correlation between positions (separable: cov(z_a, z_b) = K_ab I), and excess kurtosis
of the coordinates (-2 for ±1 tokens). Skewness is measured and not modelled: it tells when to search instead.

Cost: two passes over some thousands of the fit examples, O(N k d^2) each. Fails with TOKENS_DEGENERATE when fewer than two
directions or keys vary, and with ATTENTION_TOO_WEAK when the linear fit leaves nothing.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnlearn._canonical import Support
from attnlearn.data import Chunk, Examples
from attnlearn.engine import Engine, Stop, Tools
from attnlearn.engine._threads import in_order
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._blocks import LOCAL, over_blocks
from attnlearn.recovery.spectral._calm import calm_sides, restless
from attnlearn.recovery.spectral._rows import linear_features, visible_keys, white_tokens
from attnlearn.recovery.spectral._state import Problem, State, looked_at

_CHUNK = 2048


def prepare(problem: Problem, state: State, tools: Tools) -> tuple[State, dict]:
    """Fill the fields of `State` that later phases read as the statistics of tokens and outputs; of calm sequences, if tails are heavy."""
    found, evidence = _described(problem, state, tools)
    if not restless(problem, found):
        return found, evidence
    state = dataclasses.replace(state, **calm_sides(problem, found))
    try:
        calm, info = _described(looked_at(problem, state), state, tools)
    except Stop:
        return found, evidence
    if info["support_rank"] < evidence["support_rank"]:
        return found, evidence
    return calm, info | {"calm": len(calm.fit), "kurtosis_of_all": evidence["kurtosis"]}


def _described(problem: Problem, state: State, tools: Tools) -> tuple[State, dict]:
    examples, fit = problem.examples, problem.split.fit
    fit = fit[:: max(1, len(fit) // enough(examples))]
    support, spectrum = token_support(examples, fit, tools.engine)
    rank = support.basis.shape[1]
    evidence = {
        "examples": len(fit),
        "tokens": examples.tokens,
        "support_rank": rank,
        "condition_number": float(spectrum[:rank].max(initial=0.0) / spectrum[:rank].min(initial=np.inf)),
    }
    if rank < 2 or examples.tokens < 2:
        raise Stop("TOKENS_DEGENERATE", evidence)
    inverse = np.linalg.pinv(support.basis)
    causal = problem.causal
    if causal is None:
        causal = looks_causal(examples, fit, support, inverse)
    state = dataclasses.replace(
        state, causal=bool(causal), mean=support.mean, basis=support.basis, inverse=inverse
    )
    statistics = _statistics(examples, fit, state, tools.engine)
    state = dataclasses.replace(state, **_modelled(statistics, rank))
    share, state = _residual(examples, fit, state)
    off_diagonal = state.position_correlation - np.eye(examples.tokens)
    evidence |= {
        "causal": bool(causal),
        "position_correlation": float(np.abs(off_diagonal).max()),
        "position_mean": float(np.linalg.norm(state.position_mean, axis=1).max()),
        "kurtosis": float(state.kurtosis.mean()),
        "skewness": float(np.abs(state.skewness).max()),
        "nonlinear_share": share,
    }
    if np.abs(off_diagonal).min(initial=1.0, where=~np.eye(examples.tokens, dtype=bool)) > 0.999:
        raise Stop("TOKENS_DEGENERATE", evidence, state)
    if share < calibration.LINEAR_SHARE[examples.dtype.name]:
        raise Stop("ATTENTION_TOO_WEAK", evidence, state)
    return state, evidence


def enough(examples: Examples) -> int:
    """Sequences on which the statistics of tokens and outputs rest."""
    features = 4 * examples.dim  # of the linear fit, at most
    rows = calibration.STATISTICS_ROWS * features
    return max(calibration.STATISTICS_SEQUENCES, -(-rows // examples.tokens))


def nonlinear_share(examples: Examples) -> float:
    """Share of the output variance that a linear fit in the tokens leaves; for few examples, all at once."""
    indices = np.arange(examples.num)
    support, _ = token_support(examples, indices)
    inverse = np.linalg.pinv(support.basis)
    causal = looks_causal(examples, indices, support, inverse)
    state = State(causal=causal, mean=support.mean, basis=support.basis, inverse=inverse)
    modelled = _modelled(_statistics(examples, indices, state), support.basis.shape[1])
    return _residual(examples, indices, dataclasses.replace(state, **modelled))[0]


def token_support(
    examples: Examples, indices: Int[np.ndarray, "i"], engine: Engine = LOCAL
) -> tuple[Support, Float[np.ndarray, "d"]]:
    """Mean and square root of the covariance of the tokens, and the covariance's spectrum, largest first.

    The basis is the symmetric root when every direction varies (it keeps the axes of ±1 tokens), and the
    scaled eigenvectors of the support otherwise.

    >>> from attnlearn.data import as_examples
    >>> x = np.random.default_rng(0).standard_normal((50, 3, 4)); x[..., 3] = 1.0
    >>> token_support(as_examples(x, x), np.arange(50))[0].basis.shape
    (4, 3)
    """
    first = examples.take(indices[:_CHUNK])
    origin = _real(first).mean(axis=0, dtype=np.float64)
    count, total, square, truncated = over_blocks(
        partial(_token_sums, origin), examples, indices, _added, engine
    )
    truncated = examples.dtype == np.float32 and truncated == count
    shift = total / count
    values, vectors = np.linalg.eigh(square / count - np.outer(shift, shift))
    values, vectors = values[::-1], vectors[:, ::-1]
    tolerance = calibration.SUPPORT_TOLERANCE[examples.dtype.name]
    tolerance = calibration.TRUNCATED_SUPPORT_TOLERANCE if truncated else tolerance
    inside = values > tolerance * max(values[0], 0.0)
    basis = vectors[:, inside] * np.sqrt(values[inside])
    if inside.all():
        basis = basis @ vectors.T
    return Support(origin + shift, basis), values


def _real(chunk: Chunk) -> Float[np.ndarray, "t d"]:
    return chunk.x.reshape(-1, chunk.x.shape[2]) if chunk.mask is None else chunk.x[chunk.mask]


def _token_sums(origin: np.ndarray, examples: Examples, indices: np.ndarray) -> tuple[np.ndarray, ...]:
    """Number of tokens, their sum and second moment about `origin`, and how many end in 16 zero bits."""
    d = examples.dim
    count, total, square, truncated = 0, np.zeros(d), np.zeros((d, d)), 0
    for chunk in examples.chunks(_CHUNK, indices):
        tokens = _real(chunk)
        if tokens.dtype == np.float32:
            short = not (np.ascontiguousarray(tokens).view(np.uint32) & 0xFFFF).any()
            truncated += len(tokens) * short
        tokens = tokens.astype(np.float64) - origin  # the covariance must not drown in the square of the mean
        count += len(tokens)
        total += tokens.sum(axis=0)
        square += tokens.T @ tokens
    return np.asarray(count), total, square, np.asarray(truncated)


def _added(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(x + y for x, y in zip(a, b))


def looks_causal(examples: Examples, indices: np.ndarray, support: Support, inverse: np.ndarray) -> bool:
    """Whether the first row depends on its own token alone, and the last one does not."""
    features = support.basis.shape[1] + 1
    chunk = examples.take(indices[: max(4 * features, 200)])
    mask = np.ones(chunk.x.shape[:2], bool) if chunk.mask is None else chunk.mask
    first = mask.argmax(axis=1)
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)

    def unexplained(place: np.ndarray) -> float:
        rows = np.arange(len(place))
        z = (chunk.x[rows, place].astype(np.float64) - support.mean) @ inverse.T
        y = chunk.y[rows, place].astype(np.float64)
        z = np.column_stack([z, np.ones(len(z))])
        rest = y - z @ np.linalg.lstsq(z, y, rcond=None)[0]
        freedom = 1 - features / len(z)
        return float(np.sum(rest**2) / max(np.sum((y - y.mean(axis=0)) ** 2), 1e-300) / max(freedom, 0.1))

    return unexplained(first) < calibration.CAUSAL_FIRST and unexplained(last) > calibration.CAUSAL_REST


class _Statistics(NamedTuple):
    count: np.ndarray  # real tokens at each position
    both: np.ndarray  # sequences in which two positions are real
    first: np.ndarray
    gram: np.ndarray
    third: np.ndarray
    fourth: np.ndarray
    normal: np.ndarray
    right: np.ndarray


def _statistics(examples: Examples, fit: np.ndarray, state: State, engine: Engine = LOCAL) -> _Statistics:
    """One pass: position means and Gram, third and fourth moments, and the normal equations of the linear fit."""
    return _Statistics(*over_blocks(partial(_block_statistics, state), examples, fit, _added, engine))


def _block_statistics(state: State, examples: Examples, indices: np.ndarray) -> tuple[np.ndarray, ...]:
    inverse = state.inverse.T.astype(np.float32)
    total: tuple[np.ndarray, ...] | None = None
    for part in in_order(
        lambda chunk: _chunk_statistics(chunk, state, inverse), examples.chunks(_CHUNK, indices)
    ):
        part = tuple(np.asarray(entry, np.float64) for entry in part)
        total = part if total is None else _added(total, part)
    return total


def _chunk_statistics(chunk: Chunk, state: State, inverse: np.ndarray) -> _Statistics:
    x, y, mask = chunk
    _, k, _ = x.shape
    z = white_tokens(x, state.mean, inverse)
    r, o = z.shape[2], y.shape[2]
    weights = np.ones(z.shape[:2], np.float32) if mask is None else mask.astype(np.float32)
    z = z if mask is None else z * weights[..., None]
    phi = linear_features(z, visible_keys(k, mask, bool(state.causal))).reshape(len(x) * k, -1)
    phi = phi if mask is None else phi * weights.reshape(-1, 1)
    flat = np.swapaxes(z, 0, 1).reshape(k, -1)
    squares = np.square(z.reshape(-1, r))
    return _Statistics(
        weights.sum(axis=0, dtype=np.float64),
        weights.T @ weights,
        z.sum(axis=0, dtype=np.float64),
        flat @ flat.T,
        np.einsum("ir,ir->r", squares, z.reshape(-1, r)),
        np.einsum("ir,ir->r", squares, squares),
        phi.T @ phi,
        phi.T @ y.reshape(-1, o).astype(np.float32),
    )


def _modelled(sums: _Statistics, r: int) -> dict[str, np.ndarray]:
    """The statistics that differ significantly from independent Gaussian tokens, and the linear fit."""
    seen = np.maximum(sums.count, 1)
    mean = sums.first / seen[:, None]
    excess = seen * np.sum(mean**2, axis=1) / r - 1
    if excess.max() < calibration.DEPENDENCE_SIGMAS * np.sqrt(2 / r):
        mean = np.zeros_like(mean)
    gram = sums.gram / np.maximum(sums.both, 1) / r - mean @ mean.T / r
    correlation = gram / np.maximum(np.diag(gram), 1e-12)[:, None]
    chance = calibration.DEPENDENCE_SIGMAS / np.sqrt(np.maximum(sums.both, 1) * r)
    off = ~np.eye(len(gram), dtype=bool)
    if not np.any((np.abs(correlation) > chance) & off & (sums.both > 1)):
        correlation = np.eye(len(gram))
    np.fill_diagonal(correlation, 1.0)
    kurtosis = sums.fourth / sums.count.sum() - 3
    kurtosis[np.abs(kurtosis) < calibration.KURTOSIS_SIGMAS * np.sqrt(24 / sums.count.sum())] = 0.0
    ridge = 1e-9 * np.trace(sums.normal) / len(sums.normal) * np.eye(len(sums.normal))
    return {
        "position_mean": mean,
        "position_correlation": correlation,
        "kurtosis": kurtosis,
        "skewness": sums.third / sums.count.sum(),
        "linear": np.linalg.solve(sums.normal + ridge, sums.right),
    }


def _residual(examples: Examples, fit: np.ndarray, state: State) -> tuple[float, State]:
    """Share of the output variance that the linear fit leaves, and the covariance of that rest."""
    o = examples.out_dim
    rest, outputs = np.zeros((o, o)), np.zeros((o, o))
    total, rows = np.zeros(o), 0
    inverse = state.inverse.T.astype(np.float32)
    linear = state.linear.astype(np.float32)
    wanted = calibration.STATISTICS_ROWS * max(o, 128)
    some = fit[:: max(1, len(fit) * examples.tokens // wanted)]
    for x, y, mask in examples.chunks(_CHUNK, some):
        z = white_tokens(x, state.mean, inverse)
        z = z if mask is None else z * mask[..., None]
        phi = linear_features(z, visible_keys(x.shape[1], mask, bool(state.causal)))
        real = slice(None) if mask is None else mask.reshape(-1)
        y = y.reshape(-1, o).astype(np.float64)[real]
        residual = y - (phi.reshape(-1, phi.shape[2]) @ linear)[real]
        rest += residual.T @ residual
        outputs += y.T @ y
        total += y.sum(axis=0)
        rows += len(y)
    variance = max(np.trace(outputs) / rows - np.sum((total / rows) ** 2), np.finfo(float).tiny)
    covariance = rest / rows
    state = dataclasses.replace(state, residual_covariance=covariance, output_scale=float(np.sqrt(variance)))
    return float(np.trace(covariance) / variance), state
