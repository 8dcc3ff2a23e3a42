"""Phase 6: Gauss-Newton on every query asked so far and a few random ones, from the closed-form answer.

The closed form carries the noise of a long chain of solves; the shared `refine` fits all answers at once and ends
at rounding or at the noise. Random sequences are added because designed ones do not look everywhere. Rows of
shorter sequences are padded. If low rank does not explain the answers, the rank is given up.

Cost: that of refine. What can fail: a start outside its basin, which the residual shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._state import Inquiry, Problem, State, counts
from attnlearn.solve._refine import RefineConfig, Refined, refine

EVERY_EQUATION = 1e9
"""Queries are few and designed: a random part of them would leave directions unseen."""


def polish(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The layer that explains all answers best, near the closed-form one."""
    inquiry = Inquiry(problem, state)
    asked = sum(len(x) for x in state.asked_x)
    number = int(np.ceil(calibration.EXTRA_TRIPLES * asked))
    length = min(3, problem.config.max_tokens)
    inquiry.ask(state.scale * tools.rng("random").standard_normal((number, length, problem.dim)))
    state = inquiry.kept()
    x, y, mask = padded(state)
    start = layer_of(state)
    before = rms(start, x, y, mask)
    refined = _refined(start, x, y, mask, state.rank, tools)
    after = rms(refined.layer, x, y, mask)
    if after > calibration.POLISHED * state.noise and state.rank is not None:
        wider = _refined(refined.layer, x, y, mask, None, tools)
        if rms(wider.layer, x, y, mask) < 0.5 * after:
            refined, after = wider, rms(wider.layer, x, y, mask)
    found = refined.layer
    evidence = {
        "before": before,
        "after": after,
        "noise": state.noise,
        "stop": refined.stop,
        "steps": len(refined.steps),
        "fitted_sequences": len(x),
        **counts(problem.oracle),
    }
    changes = {"theta": found.theta, "w": found.w, "query_bias": found.query_bias, "bias": found.output_bias}
    return inquiry.kept(residual=after, total=found.w.sum(0), **changes), evidence


def _refined(start, x, y, mask, rank, tools: Tools) -> Refined:
    config = RefineConfig(equations_per_unknown=EVERY_EQUATION, seed=tools.seed)
    with tools.progress.phase("refine"):
        return refine(
            start,
            x,
            y,
            mask=mask,
            rank=rank,
            config=config,
            on_step=lambda step: tools.progress.update(residual=step.get("residual", 0.0)),
        )


def layer_of(state: State) -> AttentionLayer:
    """The layer as far as it is known, in float64."""
    return AttentionLayer(state.theta, state.w, state.query_bias, state.bias, causal=state.causal)


def padded(state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All kept queries as one batch: tokens (n, 3, d), answers (n, 3, o), mask (n, 3)."""
    longest = max(x.shape[1] for x in state.asked_x if len(x))
    xs, ys, masks = [], [], []
    for x, y in zip(state.asked_x, state.asked_y):
        if not len(x):
            continue
        missing = longest - x.shape[1]
        xs.append(np.pad(x, ((0, 0), (0, missing), (0, 0))))
        ys.append(np.pad(y, ((0, 0), (0, missing), (0, 0))))
        masks.append(np.tile(np.arange(longest) < x.shape[1], (len(x), 1)))
    return np.concatenate(xs), np.concatenate(ys), np.concatenate(masks)


def rms(layer: AttentionLayer, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> float:
    """Root mean square error of one scalar of the answers."""
    error = (layer(x, mask) - y) * mask[..., None]
    return float(np.sqrt(np.sum(error**2) / (mask.sum() * y.shape[2])))
