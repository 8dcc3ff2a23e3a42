"""Phase 6: Gauss-Newton on the queries between fixed tokens and on random ones, from the closed-form answer.

The closed form carries the noise of a long chain of solves; the shared `refine` fits all answers at once and ends
at rounding or at the noise; small layers use the whole Jacobian instead. Random sequences are added until there are
a few equations per unknown: designed ones do not look everywhere and condition the fit badly. If one low rank does
not explain the answers the next is tried, and whole Theta_i at last. Where there are many more outputs than numbers
that scores can move, refine first fits a few random combinations of the outputs.
Very large layers are fitted on random sequences alone, which costs more of them and far fewer inner iterations.

Cost: that of refine. What can fail: a start outside its basin, which the residual shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn._types import Outputs, Tokens
from attnlearn.engine import Stop, Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._equations import missing_sequences
from attnlearn.extraction._state import Inquiry, Problem, State, answer_dtype, counts
from attnlearn.solve._rank import largest_fall, profile
from attnlearn.solve.refinement import RefineConfig, refine


@dataclass(frozen=True)
class Fitted:
    """A least-squares fit, the ranks its Theta_i were kept at (None: free), its error and how it was made."""

    layer: AttentionLayer
    ranks: list[int] | None
    error: float
    how: dict[str, Any]


def polish(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The layer that explains all answers best, near the closed-form one."""
    inquiry = Inquiry(problem, state)
    start = layer_of(state)
    best: Fitted | None = None
    seen = shared_rank(start.theta) if state.ranks is None else state.ranks
    candidates = likely_first(candidate_ranks(seen), start, state)
    for ranks in candidates:
        _ask_random(inquiry, problem, ranks, tools.rng(f"random, ranks {ranks}"))
        state = inquiry.kept()
        fitted = _fit(start, state, ranks, tools)
        if best is None or fitted.error < calibration.CLEARLY_BETTER * best.error:
            best = fitted
        if best.error <= calibration.POLISHED * state.noise:
            break
    assert best is not None, "there is at least one rank to try"
    if state.constant_head:
        best = replace(best, layer=_without_scores(best.layer, state))
    if state.dependent:
        best = _merged(best, state, tools)
    best = _with_ranks(best, state)
    found, after = best.layer, rms(best.layer, state)
    evidence = {
        "before": rms(start, state),
        "after": after,
        "noise": state.noise,
        "rank": None if best.ranks is None else max(best.ranks),
        "ranks": best.ranks,
        "fitted_sequences": sum(len(x) for x in state.asked_x),
        **best.how,
        **counts(problem.oracle),
    }
    size = float(np.sqrt(np.mean(np.concatenate([y.ravel() for y in state.asked_y]) ** 2)))
    if after > max(calibration.POLISHED * state.noise, calibration.MISFIT * size):
        cause = {"cause": "no layer near the closed form explains the answers"}
        raise Stop("NOT_ATTENTION", evidence | cause, state)
    changes = {"theta": found.theta, "w": found.w, "query_bias": found.query_bias, "bias": found.output_bias}
    changes |= {"total": found.w.sum(0), "ranks": best.ranks, "residual": after}
    return inquiry.kept(**changes), evidence


def candidate_ranks(ranks: list[int] | None) -> list[list[int] | None]:
    """Ranks of the heads with which to fit, fewest unknowns first, until the answers are explained.

    Each head's own, but a single one may have been misread: also the middle one or the largest for all, and none.

    >>> candidate_ranks([8, 8, 9])
    [[8, 8, 8], [8, 8, 9], [9, 9, 9], None]
    """
    if ranks is None:
        return [None]
    shared = [[max(1, int(value))] * len(ranks) for value in (np.median(ranks), max(ranks))]
    different = [list(entry) for entry in dict.fromkeys(map(tuple, (ranks, *shared)))]
    return [*sorted(different, key=sum), None]


def likely_first(
    candidates: list[list[int] | None], start: AttentionLayer, state: State
) -> list[list[int] | None]:
    """The same candidates, those first at whose ranks the start explains the answers as it does whole."""
    if len(candidates) < 2:
        return candidates
    allowed = calibration.TRIMMED * rms(start, state)
    return sorted(candidates, key=lambda ranks: rms(trimmed(start, ranks), state) > allowed)


def trimmed(layer: AttentionLayer, ranks: list[int] | None) -> AttentionLayer:
    """The layer with the best approximation of every Theta_i that has the given rank.

    >>> layer = trimmed(AttentionLayer.random(num_heads=2, dim=3), [1, 0])
    >>> np.linalg.matrix_rank(layer.theta).tolist()
    [1, 0]
    """
    if ranks is None:
        return layer
    u, singular, vt = np.linalg.svd(layer.theta)
    kept = np.arange(singular.shape[1]) < np.array(ranks)[:, None]
    return layer.replace(theta=(u * (singular * kept)[:, None, :]) @ vt)


def shared_rank(theta: Float[np.ndarray, "m d d"]) -> list[int] | None:
    """The rank of all heads where noise hides each one's: the largest fall of their singular values on average.

    >>> shared_rank(np.array([np.diag([3.0, 2.0, 0.9, 0.8]), np.diag([4.0, 3.0, 0.9, 0.8])]))
    [2, 2]
    """
    on_average = profile(np.linalg.svd(theta, compute_uv=False))
    rank = largest_fall(on_average[: theta.shape[1] // 2 + 1], calibration.SHARED_FALL)
    return None if rank is None else [rank] * len(theta)


def _ask_random(
    inquiry: Inquiry, problem: Problem, ranks: list[int] | None, rng: np.random.Generator
) -> None:
    """Keep as many more random sequences as a fit at these ranks wants."""
    state = inquiry.kept()
    shape = (missing_sequences(state, ranks), state.longest, problem.dim)
    inquiry.ask(state.scale * rng.standard_normal(shape))


def _fit(start: AttentionLayer, state: State, ranks: list[int] | None, tools: Tools) -> Fitted:
    """All kept answers by the shared refine at these ranks."""
    x, y, mask = padded(state.asked_x, state.asked_y)
    with tools.progress.phase("refine"):
        refined = refine(
            trimmed(start, ranks),
            x,
            y,
            mask=mask,
            rank=None if ranks is None else max(1, *ranks),
            config=RefineConfig(
                equations_per_unknown=calibration.EVERY_EQUATION,
                damping=calibration.FIT_DAMPING,
                combine_first=True,
                stop_at_tolerance=True,
                float64_solves=answer_dtype(state) == np.float64,
                negligible=calibration.FIT_GAIN,
                tolerance=calibration.FIT_TOLERANCE * state.noise / max(spread(state.asked_y), state.noise),
                seed=tools.seed,
            ),
            on_step=lambda step: tools.progress.update(residual=step["residual"]),
        )
    how = {"stop": refined.stop, "steps": len(refined.steps)}
    if refined.rank is not None:  # refine may have found less than it was given
        ranks = [min(rank, refined.rank) for rank in ranks or [refined.rank] * start.num_heads]
    return Fitted(refined.layer, ranks, rms(refined.layer, state), how)


def _merged(fitted: Fitted, state: State, tools: Tools) -> Fitted:
    """The fit with equal heads as one: a search for dependent heads may have needed more than there are."""
    start = fitted.layer.canonical(calibration.SAME_HEAD)
    if start.num_heads == fitted.layer.num_heads:
        return fitted
    fewer = _fit(start, state, None, tools)
    return fewer if _as_good(fewer.layer, fitted.layer, state) else fitted


def _with_ranks(fitted: Fitted, state: State) -> Fitted:
    """Where Theta_i were free, those at the ranks that show in them now, if these explain the answers as well."""
    if fitted.ranks is not None:
        return fitted
    singular = np.linalg.svd(fitted.layer.theta, compute_uv=False)
    ranks = [final_rank(values) for values in singular]
    bare = trimmed(fitted.layer, ranks)
    return replace(fitted, layer=bare, ranks=ranks) if _as_good(bare, fitted.layer, state) else fitted


def final_rank(singular: Float[np.ndarray, "s"]) -> int:
    """The position of the largest fall, if that is one from the fitted to the noise; else the rank is full.

    >>> final_rank(np.array([2.0, 1.0, 1e-9])), final_rank(np.array([2.0, 1.0, 0.1]))
    (2, 3)
    """
    if not singular.any():
        return 0
    rounded = np.maximum(singular, np.finfo(float).eps * singular[0])
    return largest_fall(rounded, calibration.FINAL_FALL) or len(singular)


def _as_good(bare: AttentionLayer, layer: AttentionLayer, state: State) -> bool:
    """Whether the simpler layer explains the answers as well: what it lacks is rounding."""
    return rms(bare, state) <= max(1.05 * rms(layer, state), calibration.POLISHED * state.noise)


def _without_scores(layer: AttentionLayer, state: State) -> AttentionLayer:
    """The last head with Theta = 0, and c = 0 too, where that explains the answers as well."""
    for name in ("theta", "query_bias"):
        array = getattr(layer, name).copy()
        array[-1] = 0.0
        bare = layer.replace(**{name: array})
        layer = bare if _as_good(bare, layer, state) else layer
    return layer


def layer_of(state: State) -> AttentionLayer:
    """The layer as far as it is known, in float64."""
    return AttentionLayer(state.theta, state.w, state.query_bias, state.bias, causal=state.causal)


def padded(asked_x: list[Tokens], asked_y: list[Outputs]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries of several lengths as one batch: tokens (n, k, d), answers (n, k, o), mask (n, k).

    >>> padded([np.ones((2, 1, 4)), np.ones((1, 3, 4))], [np.ones((2, 1, 5)), np.ones((1, 3, 5))])[2].sum(1).tolist()
    [1, 1, 3]
    """
    longest = max(x.shape[1] for x in asked_x if len(x))
    xs, ys, masks = [], [], []
    for x, y in zip(asked_x, asked_y):
        if not len(x):
            continue
        missing = longest - x.shape[1]
        xs.append(np.pad(x, ((0, 0), (0, missing), (0, 0))))
        ys.append(np.pad(y, ((0, 0), (0, missing), (0, 0))))
        masks.append(np.tile(np.arange(longest) < x.shape[1], (len(x), 1)))
    return np.concatenate(xs), np.concatenate(ys), np.concatenate(masks)


def spread(asked_y: list[Outputs]) -> float:
    """Standard deviation of one scalar of the answers about their mean, to which residuals of refine are relative.

    >>> spread([np.array([[[1.0]], [[3.0]]])])
    1.0
    """
    rows = np.concatenate([y.reshape(-1, y.shape[2]) for y in asked_y])
    return float(np.sqrt(np.mean((rows - rows.mean(axis=0)) ** 2)))


def rms(layer: AttentionLayer, state: State) -> float:
    """Root mean square error of one scalar of the answers that were kept."""
    pairs = [(x, y) for x, y in zip(state.asked_x, state.asked_y) if len(x)]
    squares = sum(float(np.sum((layer(x) - y) ** 2)) for x, y in pairs)
    return float(np.sqrt(squares / sum(y.size for _, y in pairs)))
