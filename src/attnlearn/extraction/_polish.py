"""Phase 6: Gauss-Newton on the queries between fixed tokens and on random ones, from the closed-form answer.

The closed form carries the noise of a long chain of solves; the shared `refine` fits all answers at once and ends
at rounding or at the noise; small layers use the whole Jacobian instead. Random sequences are added until there are
a few equations per unknown: designed ones do not look everywhere and condition the fit badly. If one low rank does
not explain the answers the next is tried, and whole Theta_i at last.

Cost: that of refine. What can fail: a start outside its basin, which the residual shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Stop, Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._settle import forward, settle, unknowns
from attnlearn.extraction._state import Inquiry, Problem, State, counts
from attnlearn.solve._refine import RefineConfig, refine


@dataclass(frozen=True)
class Fitted:
    """A least-squares fit, the rank its Theta_i were kept at (None: free), its error and how it was made."""

    layer: AttentionLayer
    rank: int | None
    error: float
    how: dict[str, Any]


def polish(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The layer that explains all answers best, near the closed-form one."""
    inquiry = Inquiry(problem, state)
    start = layer_of(state)
    best: Fitted | None = None
    ranks = state.ranks
    if ranks is None and not _is_small(start):
        ranks = shared_rank(start.theta)
    for rank in candidate_ranks(ranks, _is_small(start)):
        _ask_random(inquiry, problem, rank, tools.rng(f"random, rank {rank}"))
        state = inquiry.kept()
        fitted = _fit(start, state, rank, tools)
        if best is None or fitted.error < calibration.CLEARLY_BETTER * best.error:
            best = fitted
        if best.error <= calibration.POLISHED * state.noise:
            break
    found = _without_scores(best.layer, state) if state.constant_head else best.layer
    after = rms(found, state)
    evidence = {
        "before": rms(start, state),
        "after": after,
        "noise": state.noise,
        "rank": best.rank,
        "fitted_sequences": sum(len(x) for x in state.asked_x),
        **best.how,
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
    return inquiry.kept(residual=after, rank=best.rank, total=found.w.sum(0), **changes), evidence


def candidate_ranks(ranks: list[int] | None, small: bool) -> list[int | None]:
    """Ranks at which to fit all heads, one after the other until the answers are explained.

    Heads mostly share one rank, and a single one may have been misread: the middle one is first, then the largest,
    then none. Small layers are fitted whole and only named after their largest rank.

    >>> candidate_ranks([8, 8, 9], small=False)
    [8, 9, None]
    """
    if ranks is None:
        return [None]
    middle, largest = (max(1, int(value)) for value in (np.median(ranks), max(ranks)))
    return [largest] if small else [*dict.fromkeys((middle, largest)), None]


def shared_rank(theta: Float[np.ndarray, "m d d"]) -> list[int] | None:
    """The rank of all heads where noise hides each one's: the largest fall of their singular values on average.

    >>> shared_rank(np.array([np.diag([3.0, 2.0, 0.9, 0.8]), np.diag([4.0, 3.0, 0.9, 0.8])]))
    [2, 2]
    """
    singular = np.log(np.maximum(np.linalg.svd(theta, compute_uv=False), 1e-300))
    falls = np.mean(singular[:, :-1] - singular[:, 1:], axis=0)[: theta.shape[1] // 2]
    best = int(np.argmax(falls))
    return [best + 1] * len(theta) if falls[best] > np.log(calibration.SHARED_FALL) else None


def _is_small(layer: AttentionLayer) -> bool:
    return unknowns(layer) <= calibration.SETTLE_UNKNOWNS


def missing_sequences(state: State, rank: int | None) -> int:
    """Random sequences that bring the fit to the wanted number of equations per unknown."""
    m, d, o = state.w.shape
    scores = d * d if rank is None else rank * (2 * d - rank)
    coarse = state.noise > calibration.NOISY * max(float(np.abs(y).max(initial=0.0)) for y in state.asked_y)
    factor = calibration.FIT_EQUATIONS_NOISY if coarse else calibration.FIT_EQUATIONS
    wanted = factor * (m * (scores + d + d * o) + o)
    present = sum(y.size for y in state.asked_y[1:])
    return max(
        calibration.FIT_RANDOM_LEAST, int(np.ceil((wanted - present) / (calibration.RANDOM_TOKENS * o)))
    )


def _ask_random(inquiry: Inquiry, problem: Problem, rank: int | None, rng: np.random.Generator) -> None:
    """Keep as many more random sequences as a fit at this rank wants."""
    state = inquiry.kept()
    shape = (missing_sequences(state, rank), calibration.RANDOM_TOKENS, problem.dim)
    inquiry.ask(state.scale * rng.standard_normal(shape))


def _fit(start: AttentionLayer, state: State, rank: int | None, tools: Tools) -> Fitted:
    """All kept answers by the whole Jacobian when that is small, else by the shared refine at this rank."""
    if _is_small(start):
        found, steps = settle(start, state.asked_x, state.asked_y)
        return Fitted(found, rank, rms(found, state), {"method": "whole Jacobian", "steps": steps})
    x, y, mask = padded(state)
    with tools.progress.phase("refine"):
        refined = refine(
            start,
            x,
            y,
            mask=mask,
            rank=rank,
            config=RefineConfig(equations_per_unknown=calibration.EVERY_EQUATION, seed=tools.seed),
            on_step=lambda step: tools.progress.update(residual=step["residual"]),
        )
    how = {"method": "refine", "stop": refined.stop, "steps": len(refined.steps)}
    return Fitted(refined.layer, refined.rank, rms(refined.layer, state), how)


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
