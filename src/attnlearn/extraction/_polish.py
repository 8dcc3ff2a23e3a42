"""Phase 6: Gauss-Newton on the queries between fixed tokens and on random ones, from the closed-form answer.

The closed form carries the noise of a long chain of solves; the shared `refine` fits all answers at once and ends
at rounding or at the noise; small layers use the whole Jacobian instead. Random sequences are added until there are
a few equations per unknown: designed ones do not look everywhere and condition the fit badly. If low rank does not
explain the answers, the rank is given up.

Cost: that of refine. What can fail: a start outside its basin, which the residual shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Stop, Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._settle import forward, settle, unknowns
from attnlearn.extraction._state import Inquiry, Problem, State, counts
from attnlearn.solve._refine import RefineConfig, Refined, refine

EVERY_EQUATION = 1e9
"""Queries are few and designed: a random part of them would leave directions unseen."""


def polish(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The layer that explains all answers best, near the closed-form one."""
    inquiry = Inquiry(problem, state)
    length = min(3, problem.config.max_tokens)
    shape = (missing_sequences(state, length), length, problem.dim)
    inquiry.ask(state.scale * tools.rng("random").standard_normal(shape))
    state = inquiry.kept()
    start = layer_of(state)
    before = rms(start, state)
    if unknowns(start) <= calibration.SETTLE_UNKNOWNS:
        found, steps = settle(start, state.asked_x, state.asked_y)
        how = {"method": "whole Jacobian", "steps": steps}
    else:
        found, how = _refined(start, state, tools)
    if state.constant_head:
        found = _without_scores(found, state)
    after = rms(found, state)
    evidence = {
        "before": before,
        "after": after,
        "noise": state.noise,
        "fitted_sequences": sum(len(x) for x in state.asked_x),
        **how,
        **counts(problem.oracle),
    }
    size = float(np.sqrt(np.mean(np.concatenate([y.ravel() for y in state.asked_y]) ** 2)))
    if after > max(calibration.POLISHED * state.noise, calibration.MISFIT * size):
        raise Stop(
            "NOT_ATTENTION",
            {**evidence, "cause": "no layer near the closed form explains the answers"},
            state,
        )
    changes = {"theta": found.theta, "w": found.w, "query_bias": found.query_bias, "bias": found.output_bias}
    return inquiry.kept(residual=after, total=found.w.sum(0), **changes), evidence


def missing_sequences(state: State, length: int) -> int:
    """Random sequences of this length that bring the fit to the wanted number of equations per unknown."""
    m, d, o = state.w.shape
    scores = d * d if state.rank is None else state.rank * (2 * d - state.rank)
    coarse = state.noise > calibration.NOISY * max(float(np.abs(y).max(initial=0.0)) for y in state.asked_y)
    factor = calibration.FIT_EQUATIONS_NOISY if coarse else calibration.FIT_EQUATIONS
    wanted = factor * (m * (scores + d + d * o) + o)
    present = sum(y.size for y in state.asked_y[1:])
    return max(calibration.FIT_RANDOM_LEAST, int(np.ceil((wanted - present) / (length * o))))


def _refined(start: AttentionLayer, state: State, tools: Tools) -> tuple[AttentionLayer, dict[str, Any]]:
    """The shared refine, at the rank that was found; without it if that does not explain the answers."""
    x, y, mask = padded(state)
    config = RefineConfig(equations_per_unknown=EVERY_EQUATION, seed=tools.seed)
    with tools.progress.phase("refine"):

        def run(layer: AttentionLayer, rank: int | None) -> Refined:
            return refine(
                layer,
                x,
                y,
                mask=mask,
                rank=rank,
                config=config,
                on_step=lambda step: tools.progress.update(residual=step["residual"]),
            )

        refined = run(start, state.rank)
        miss = rms(refined.layer, state)
        if state.rank is not None and miss > calibration.POLISHED * state.noise:
            wider = run(refined.layer, None)
            refined = wider if rms(wider.layer, state) < 0.5 * miss else refined
    return refined.layer, {"method": "refine", "stop": refined.stop, "steps": len(refined.steps)}


def _without_scores(layer: AttentionLayer, state: State) -> AttentionLayer:
    """The last head with Theta = 0, and c = 0 too, where that explains the answers as well: the rest is rounding."""
    allowed = max(1.05 * rms(layer, state), calibration.POLISHED * state.noise)
    for name in ("theta", "query_bias"):
        array = getattr(layer, name).copy()
        array[-1] = 0.0
        bare = layer.replace(**{name: array})
        if rms(bare, state) <= allowed:
            layer = bare
    return layer


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


def rms(layer: AttentionLayer, state: State) -> float:
    """Root mean square error of one scalar of the answers that were kept."""
    pairs = [(x, y) for x, y in zip(state.asked_x, state.asked_y) if len(x)]
    squares = sum(float(np.sum((forward(layer, x)[0] - y) ** 2)) for x, y in pairs)
    return float(np.sqrt(squares / sum(y.size for _, y in pairs)))
