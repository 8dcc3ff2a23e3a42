"""The sum of projections as the paper finds it: a correlation first, then rows in which the minimum-norm point is clear.

Phase 1. S is about the mean of X^T J Y / k, J all ones: the sum of the tokens times the sum of the outputs. For white,
independent tokens that is exact where attention is uniform. What attention adds is a bias, which falls with the
dimension and not with the number of examples.

Phase 3. Let P be the minimum-norm point of the body. Rows in which its score prefers one token by several standard
deviations are rows in which every head looks at that token, so y = x_b S + b: plain least squares on all such rows.
Ours (`_sum`) weighs rows by how well one token explains them instead, before and after there is a body.

Cost: one pass over the examples in memory each. What can fail: a bias so large that no row is recognised (the carving
then stops).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn.engine import Stop, Tools
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._rows import as_batch, with_one
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.solve._batch import WhiteBatch
from attnlearn.solve._white import whitening


def correlation_sum(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """White coordinates and [S; b] from the correlation; evidence: its singular values."""
    examples, split = problem.examples, problem.split
    chunk = examples.take(split.fit[: calibration.SUM_SEQUENCES])
    white = whitening(chunk.x, chunk.mask)
    evidence: dict[str, Any] = {"sequences": len(chunk.x), "support_rank": white.directions}
    if white.directions <= 1:
        raise Stop("TOKENS_DEGENERATE", evidence)
    batch = as_batch(chunk, white, bool(problem.causal))
    one, two = (correlation(batch, half) for half in (0, 1))
    total = (one + two) / 2
    state = dataclasses.replace(
        state,
        causal=bool(problem.causal),
        shift=white.mean,
        root=white.basis,
        unroot=white.inverse,
        sum=total,
        sum_spread=one - two,
        sum_scale=calibration.PAPER_SCALE,
        examples_read=examples.num - problem.source.at_hand,
    )
    return state, evidence | {"singular_values": np.linalg.svd(total[:-1], compute_uv=False)}


def correlation(batch: WhiteBatch, half: int) -> Float[np.ndarray, "e1 o"]:
    """Mean of X^T J Y / k over every second sequence, and below it the mean output.

    >>> z = np.random.default_rng(0).choice([-1.0, 1.0], (40_000, 3, 4))
    >>> uniform = WhiteBatch(z, np.repeat(z.mean(axis=1, keepdims=True), 3, axis=1), np.ones((len(z), 3, 3), bool))
    >>> bool(np.abs(correlation(uniform, 0)[:-1] - np.eye(4)).max() < 0.05)
    True
    """
    real = batch.seen[half::2].any(axis=2, keepdims=True)
    tokens, outputs = batch.tokens[half::2] * real, batch.outputs[half::2]
    mean = (outputs * real).sum(axis=(0, 1)) / real.sum()
    rest = (outputs - mean) * real
    counts = np.maximum(real.sum(axis=1), 1)
    total = tokens.sum(axis=1).T @ (rest.sum(axis=1) / counts) / len(tokens)
    return np.concatenate([total, mean[None]])


def margin_sum(problem: Problem, state: State) -> tuple[State, dict[str, Any]]:
    """[S; b] again, from all rows in which the minimum-norm point clearly prefers one token."""
    chunk = problem.examples.take(problem.split.fit[: calibration.SUM_SEQUENCES])
    batch = as_batch(chunk, state.whitening, bool(state.causal))
    scores = np.einsum("naf,fe,nbe->nab", with_one(batch.tokens), state.minimum_norm, batch.tokens)
    scores = np.where(batch.seen, scores, -np.inf)
    order = np.sort(scores, axis=2)
    margin = np.where(np.isfinite(order[..., -2]), order[..., -1] - order[..., -2], 0)
    clear = margin >= calibration.CLEAR_MARGIN * np.linalg.norm(state.minimum_norm)
    evidence: dict[str, Any] = {"rows": int(clear.sum()), "used": False}
    if clear.sum() < calibration.SUM_ROWS * state.sum.shape[0]:
        return state, evidence
    own = np.take_along_axis(batch.tokens, np.argmax(scores, axis=2)[..., None], axis=1)[clear]
    features, outputs = with_one(own), batch.outputs[clear]
    if min(np.linalg.matrix_rank(features[half::2]) for half in (0, 1)) < features.shape[1]:
        return state, evidence  # few discrete tokens may be preferred in a subspace alone
    one, two = (np.linalg.lstsq(features[h::2], outputs[h::2], rcond=None)[0] for h in (0, 1))
    total = np.linalg.lstsq(features, outputs, rcond=None)[0]
    state = dataclasses.replace(state, sum=total, sum_spread=one - two, sum_scale=calibration.PAPER_SCALE)
    return state, evidence | {"used": True}
