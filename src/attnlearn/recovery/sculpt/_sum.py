"""The sum of projections S = sum_i W_i (and the output bias b), crude at first, refined with the body's help.

Phase 1. Regressing y on the mean token leaves 30 % of bias. Rows in which every head looks at the same single token
obey y = x_b S + b exactly, but they are unknown and rare. So: assign each row to the token with the smallest
relative residual r, weigh it by (c^2 / (r^2 + c^2))^2 and regress again, while c falls to smaller and smaller
quantiles of r (a redescending estimator, annealed). The weights, unlike a hard trim, keep a few rows in every
direction of token space, so the regression stays well posed.

Phase 4. The minimum-norm point P of the body averages the heads: a row in which its score prefers one token by
several standard deviations is one in which all heads do. Those rows, weighed as before, give S again.

The difference between the sums of two halves of the rows (`spread`) measures the error of S row by row; it enters
the width of every slab.

Cost: a few dozen passes over the rows in memory. What can fail: attention too weak (y is nearly linear),
projections that cancel (no row is explained by one token), attention that is one-hot everywhere.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._jax import jax, jnp
from attnlearn._precision import precision
from attnlearn.engine import Stop, Tools
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._diagnose import reason_of
from attnlearn.recovery.sculpt._rows import Rows, as_batch, with_one
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.solve._batch import WhiteBatch
from attnlearn.solve._white import whitening


def crude_sum(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """White coordinates and the first [S; b]; evidence: scale and quantile of the residuals by step."""
    examples, split = problem.examples, problem.split
    chunk = examples.take(split.fit[: calibration.SUM_SEQUENCES])
    white = whitening(chunk.x, chunk.mask)
    rank = white.directions
    evidence: dict[str, Any] = {"sequences": len(chunk.x), "support_rank": rank, "tokens": examples.tokens}
    if rank <= 1:
        raise Stop("TOKENS_DEGENERATE", evidence)
    causal = bool(problem.causal)
    batch = as_batch(chunk, white, causal)
    _require_possible(problem, examples.tokens, examples.out_dim, evidence)
    start, explained, linear = _mean_token(batch)
    evidence |= {"causal": bool(causal), "explained_by_mean": explained, "unexplained": linear}
    if linear < calibration.LINEAR_SHARE:
        raise Stop("ATTENTION_TOO_WEAK", evidence)
    fit = anneal(start, batch, calibration.SUM_SHARES)
    if fit.doubt > calibration.SUM_ASTRAY and not _cancelled(explained, examples.tokens):
        narrow = anneal(start, batch, calibration.NARROW_SHARES, calibration.NARROW_REPEATS)
        fit = min(fit, narrow, key=lambda found: found.doubt)
    evidence |= {"scales": fit.scales, "singular_values": np.linalg.svd(fit.total[:-1], compute_uv=False)}
    state = dataclasses.replace(
        state,
        causal=bool(causal),
        shift=white.mean,
        root=white.basis,
        unroot=white.inverse,
        sum=fit.total,
        sum_spread=fit.spread,
        sum_scale=fit.scale,
    )
    evidence["doubt"] = fit.doubt
    if fit.scale > calibration.SUM_FOUND:
        raise _no_sum(problem, state, tools, evidence)
    return dataclasses.replace(state, examples_read=examples.num - problem.source.at_hand), evidence


def _cancelled(explained_by_mean: float, tokens: int) -> bool:
    """Whether the mean token explains too little for a sum that does not vanish."""
    return explained_by_mean < calibration.CANCELLED / tokens


def _no_sum(problem: Problem, state: State, tools: Tools, evidence: dict[str, Any]) -> Stop:
    """Why no row is explained by one token."""
    if _cancelled(evidence["explained_by_mean"], problem.examples.tokens):
        return Stop("PROJECTIONS_CANCEL", evidence, state)
    if evidence["unexplained"] < calibration.WEAK_SHARE:
        return Stop("ATTENTION_TOO_WEAK", evidence, state)
    more = {"examples_needed": int(calibration.SUM_GROWTH * problem.examples.num)}
    return reason_of(problem, state, tools, Stop("TOO_FEW_EXAMPLES", evidence | more, state))


def _require_possible(problem: Problem, tokens: int, out_dim: int, evidence: dict[str, Any]) -> None:
    heads = problem.num_heads
    if heads is not None and heads * (tokens - 1) > out_dim:
        condition = {"condition": "m (k - 1) <= d_out", "left": heads * (tokens - 1), "right": out_dim}
        raise Stop("TOO_MANY_HEADS", evidence | condition)


def _mean_token(batch: WhiteBatch) -> tuple[Float[np.ndarray, "e1 o"], float, float]:
    """Least squares on the mean of the visible tokens; the share of the variance that it explains, and the share
    that query and mean together leave unexplained."""
    counts = np.maximum(batch.seen.sum(axis=2, keepdims=True), 1)
    means = (batch.seen @ batch.tokens) / counts
    real = batch.seen.any(axis=2)
    y, means, own = batch.outputs[real], with_one(means[real]), batch.tokens[real]
    variance = max(float(np.sum((y - y.mean(axis=0)) ** 2)), np.finfo(float).tiny)
    start = np.linalg.lstsq(means, y, rcond=None)[0]
    both = np.concatenate([means, own], axis=1)
    rest = y - both @ np.linalg.lstsq(both, y, rcond=None)[0]
    return start, 1 - float(np.sum((y - means @ start) ** 2)) / variance, float(np.sum(rest**2)) / variance


class SumFit(NamedTuple):
    """[S; b] at the step that is doubted least, the difference between the halves' answers there, its scale c and
    its doubt (estimated relative error); the scales of all steps."""

    total: Float[np.ndarray, "e1 o"]
    spread: Float[np.ndarray, "e1 o"]
    scale: float
    doubt: float
    scales: list[float]


def anneal(
    start: Float[np.ndarray, "e1 o"],
    batch: WhiteBatch,
    shares: tuple[float, ...],
    repeats: int = calibration.SUM_REPEATS,
) -> SumFit:
    """Reweighted least squares with c at falling quantiles of the relative residual.

    >>> from attnlearn import AttentionLayer
    >>> layer = AttentionLayer.random(1, 3, scale=6.0, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((2000, 3, 3))
    >>> batch = WhiteBatch(x, layer(x), np.ones((2000, 3, 3), bool))
    >>> fit = anneal(np.zeros((4, 3)), batch, (0.3, 0.1, 0.03))
    >>> bool(np.abs(fit.total[:-1] - layer.w.sum(axis=0)).max() < 0.05)
    True
    """
    total, scales = start, []
    best: SumFit | None = None
    with precision(np.float32):
        arrays = [jnp.asarray(a, bool if a.dtype == bool else np.float32) for a in batch.written_out()]
        relative = np.asarray(_assign(jnp.asarray(total, jnp.float32), *arrays)[1])
        for share in shares:
            for _ in range(repeats):
                scale = float(np.quantile(relative[np.isfinite(relative)], share))
                scale = max(scale, calibration.SUM_FINEST)
                halves, right, relative = _weigh(jnp.asarray(total, jnp.float32), *arrays, np.float32(scale))
                relative = np.asarray(relative)
                total, spread = _solve(np.asarray(halves, np.float64), np.asarray(right, np.float64))
            scales.append(scale)
            doubt = np.linalg.norm(spread) / max(np.linalg.norm(total), np.finfo(float).tiny)
            doubt += calibration.SUM_BIAS * scale
            if best is None or doubt < best.doubt:
                best = SumFit(total, spread, scale, float(doubt), scales)
            if scale <= calibration.SUM_FINEST:
                break
    assert best is not None
    return best


@jax.jit
def _assign(total, tokens, outputs, visible):
    values = tokens @ total[:-1]
    rest = outputs - total[-1]
    square = jnp.sum((rest[:, :, None, :] - values[:, None, :, :]) ** 2, axis=-1)
    square = jnp.where(visible, square, jnp.inf)
    size = jnp.sum(rest**2, axis=-1) + 1e-30
    return jnp.argmin(square, axis=-1), jnp.sqrt(jnp.min(square, axis=-1) / size), size


@jax.jit
def _weigh(total, tokens, outputs, visible, scale):
    """Normal equations of the two halves (even and odd sequences) of the weighted regression."""
    token, relative, size = _assign(total, tokens, outputs, visible)
    weight = jnp.where(jnp.isfinite(relative), (scale**2 / (relative**2 + scale**2)) ** 2, 0) / size
    own = jnp.take_along_axis(tokens, token[..., None], axis=1)
    own = jnp.concatenate([own, jnp.ones_like(own[..., :1])], axis=-1)
    grams, rights = [], []
    for half in (0, 1):
        f, y, w = own[half::2], outputs[half::2], weight[half::2]
        grams.append(jnp.einsum("nae,na,naf->ef", f, w, f))
        rights.append(jnp.einsum("nae,na,nao->eo", f, w, y))
    return jnp.stack(grams), jnp.stack(rights), relative


def _solve(grams: np.ndarray, rights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ridge = calibration.SUM_RIDGE * np.trace(grams.sum(axis=0)) / len(grams[0]) * np.eye(len(grams[0]))
    one, two = (np.linalg.solve(gram + ridge, right) for gram, right in zip(grams, rights))
    return np.linalg.solve(grams.sum(axis=0) + ridge, rights.sum(axis=0)), one - two


def doubt(state: State) -> float:
    """Estimated relative error of the sum: the halves' disagreement and the bias of the last scale."""
    size = max(float(np.linalg.norm(state.sum)), np.finfo(float).tiny)
    return float(np.linalg.norm(state.sum_spread)) / size + calibration.SUM_BIAS * state.sum_scale


def sum_of_singles(state: State, rows: Rows) -> State:
    """[S; b] again, from the rows that one token explains best, of all that was read; the old one if that is surer."""
    batch = WhiteBatch(rows.tokens, rows.outputs[:, None], rows.keys[:, None])
    if len(rows.query) < calibration.SUM_ROWS * state.sum.shape[0]:
        return state
    fit = anneal(state.sum, batch, calibration.SINGLES_SHARES)
    if fit.doubt >= doubt(state):
        return state
    return dataclasses.replace(state, sum=fit.total, sum_spread=fit.spread, sum_scale=fit.scale)


def refine_sum(state: State, rows: Rows) -> tuple[State, dict[str, Any]]:
    """[S; b] again, from rows in which the minimum-norm point clearly prefers one token.

    Keeps the old sum when there are too few such rows, or when its estimated error is smaller.
    """
    scores = np.einsum("nf,fe,nke->nk", rows.queries(), state.minimum_norm, rows.tokens)
    scores = np.where(rows.keys, scores, -np.inf)
    order = np.sort(scores, axis=1)
    margin = order[:, -1] - order[:, -2]
    deviation = np.linalg.norm(state.minimum_norm)  # of its scores on white tokens
    clear = np.flatnonzero(margin >= calibration.CLEAR_MARGIN * deviation)
    evidence: dict[str, Any] = {"rows": len(clear), "used": False}
    if len(clear) < calibration.SUM_ROWS * state.sum.shape[0]:
        return state, evidence
    chosen = rows.take(clear)
    each = np.arange(len(clear))
    own = chosen.tokens[each, np.argmax(scores[clear], axis=1)]
    batch = WhiteBatch(own[:, None], chosen.outputs[:, None], np.ones((len(clear), 1, 1), bool))
    fit = anneal(state.sum, batch, calibration.REFINE_SHARES)
    evidence |= {"scales": fit.scales, "doubt": fit.doubt}
    if fit.doubt >= doubt(state):
        return state, evidence
    state = dataclasses.replace(state, sum=fit.total, sum_spread=fit.spread, sum_scale=fit.scale)
    return state, evidence | {"used": True}
