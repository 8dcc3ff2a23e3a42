"""Unmix: from the span to a layer that refine can start from.

Theory, section 3 (Unmix, Whitening). The coordinates that the count found on the span give each head's Theta_i and c_i; if
the count's starts ended in different optima, variable projection on fresh rows from these and from random ones. W_i and b
then follow by least squares on the attention of the found heads, free of the span. Everything is carried back to the
caller's coordinates:

    Theta = B^{+T} Theta' B^+,  c = B^{+T} c' - Theta^T mu,  W = B^{+T} W',  b = b' - mu^T S.

The rank of a head is the number of singular values of Theta_i' above the edge of the noise that the
moment left in it, 2 sqrt(h / pairs) / s; None when it is not clearly below the dimension.
Fails with LOW_EFFECTIVE_RANK when the starts end in different optima and the heads have effective rank near one:
then a head and its swap (theory, section 3) explain the moment equally well.
Cost: at most a few unmixings, and one least squares with m d unknowns per output.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from attnlearn.engine import Stop, Tools
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._count import best_start, span_models
from attnlearn.recovery.spectral._rows import RowSource, output_whitening
from attnlearn.recovery.spectral._state import Problem, State, looked_at


def unmix(problem: Problem, state: State, tools: Tools) -> tuple[State, dict]:
    """The start for refine: theta, w, query_bias, output_bias in the caller's coordinates, and the rank."""
    problem, rng = looked_at(problem, state), tools.rng(f"unmix {state.num_heads}")
    a, vectors = state.coordinates, state.coordinates.shape[1]
    starts, agreed = {}, state.agreed
    if not agreed:  # otherwise other starts would end where the count's did
        model, other = span_models(problem, state, vectors, rng)
        found = best_start(model, len(a), rng, a, tools.engine)
        a, agreed = found.coordinates, found.agreed
        state = dataclasses.replace(state, unexplained=other.judge(a, found.fit.mixing))
        starts = {"residual_shares": found.shares, "steps": found.steps}
    scores = np.tensordot(a, state.query_basis[:vectors], axes=1)
    theta, query_bias = scores[:, :-1], scores[:, -1]
    w, bias, share = regress_outputs(problem, state, theta, query_bias, rng)
    rank, spectrum, edge = infer_rank(state, a, scores)
    effective = np.sum(spectrum**2, axis=1) / spectrum[:, 0] ** 2
    state = dataclasses.replace(state, rank=rank, **from_white(state, theta, query_bias, w, bias))
    evidence = starts | {
        "select_residual": state.unexplained,
        "free_residual": share,
        "score_std": np.linalg.norm(scores, axis=(1, 2)).tolist(),
        "rank": rank,
        "head_spectra": spectrum.tolist(),
        "rank_edge": edge.tolist(),
        "effective_rank": effective.tolist(),
    }
    if evidence["select_residual"] > calibration.UNEXPLAINED:
        raise Stop("TOKENS_DEGENERATE", evidence, state)
    if not agreed and np.median(effective) < calibration.EFFECTIVE_RANK:
        raise Stop("LOW_EFFECTIVE_RANK", evidence, state)
    return state, evidence


def regress_outputs(
    problem: Problem,
    state: State,
    theta: Float[np.ndarray, "m r r"],
    query_bias: Float[np.ndarray, "m r"],
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "m r o"], Float[np.ndarray, "o"], float]:
    """W and b by least squares on the attention of given heads, in white coordinates, and the residual share."""
    m, r, _ = theta.shape
    k, o = problem.examples.tokens, problem.examples.out_dim
    features = m * r + 1
    wanted = int(np.ceil(calibration.REGRESS_ROWS * features / k))
    chosen = np.sort(rng.permutation(problem.split.fit)[: max(wanted, 64)])
    source = RowSource(problem, state, chosen)
    normal, right, size = np.zeros((features, features)), np.zeros((features, o)), 0.0
    stacked = np.swapaxes(theta, 0, 1).reshape(r, m * r).astype(np.float32)
    shift = query_bias.reshape(1, m * r).astype(np.float32)
    for z, y, visible, real in source.outputs():
        n = len(z)
        queries = (z.reshape(n * k, r) @ stacked + shift).reshape(n, k * m, r)
        scores = (queries @ np.swapaxes(z, 1, 2)).reshape(n, k, m, k)
        if visible is not None:
            scores = np.where(visible[:, :, None, :], scores, -np.inf)
        top = scores.max(axis=3, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
        weights /= np.maximum(weights.sum(axis=3, keepdims=True), np.finfo(np.float32).tiny)
        mixed = (weights.reshape(n, k * m, k) @ z).reshape(n * k, m * r)
        phi = np.concatenate([mixed, np.ones((n * k, 1), np.float32)], axis=1)[real]
        y = y.reshape(n * k, o)[real]
        normal += phi.T @ phi
        right += phi.T @ y
        size += float(np.sum((y - y.mean(axis=0)) ** 2, dtype=np.float64))
    ridge = calibration.SOLVE_RIDGE * np.trace(normal) / features * np.eye(features)
    solution = np.linalg.solve(normal + ridge, right)
    rest = float(np.trace(state.residual_covariance) / state.output_scale**2)
    explained = np.sum(solution * right) - right[-1] @ right[-1] / max(normal[-1, -1], 1.0)
    share = max(0.0, 1 - explained / max(size, np.finfo(float).tiny)) / max(rest, np.finfo(float).tiny)
    return solution[:-1].reshape(m, r, o), solution[-1], float(share)


def from_white(
    state: State, theta: np.ndarray, query_bias: np.ndarray, w: np.ndarray, bias: np.ndarray
) -> dict[str, np.ndarray]:
    """The layer in the caller's coordinates."""
    inverse, mean = state.inverse, state.mean
    theta = inverse.T @ theta @ inverse
    w = inverse.T @ w
    return {
        "theta": theta,
        "w": w,
        "query_bias": query_bias @ inverse - np.einsum("mde,d->me", theta, mean),
        "output_bias": bias - mean @ w.sum(axis=0),
    }


def to_white(
    state: State, theta: np.ndarray, query_bias: np.ndarray, w: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The layer as a function of white tokens: the inverse of `from_white` on the support."""
    basis, mean = state.basis, state.mean
    shifted = query_bias + np.einsum("mde,d->me", theta, mean)
    return basis.T @ theta @ basis, shifted @ basis, basis.T @ w, bias + mean @ w.sum(axis=0)


def infer_rank(
    state: State, a: Float[np.ndarray, "m l"], scores: Float[np.ndarray, "m u r"]
) -> tuple[int | None, Float[np.ndarray, "m r"], Float[np.ndarray, "m"]]:
    """The largest rank of the heads, each head's singular values and the noise edge under them.

    None when factors would not pay, or when no value stands out: heads that attend by their query bias alone.
    """
    r = scores.shape[2]
    spectrum = np.linalg.svd(scores[:, :-1], compute_uv=False)  # refine keeps c apart from the factors
    whitening = output_whitening(state.residual_covariance)[0]
    total = np.trace(whitening @ state.residual_covariance @ whitening)
    # floor = sqrt(h/pairs) (sqrt(total) + sqrt(r)): a left vector carries N v / s, whose norm as an r x r matrix
    # is sqrt(h/pairs) times 2 sqrt(r) / sqrt(r).
    unit = 2 * state.floor / (np.sqrt(total) + np.sqrt(r))
    edge = np.sqrt(np.sum((a * unit / state.singular_values[: a.shape[1]]) ** 2, axis=1))
    rank = int(np.sum(spectrum > calibration.RANK_EDGE * edge[:, None], axis=1).max())
    # A rank one too large leaves the refinement without curvature in the idle columns, so a drop that all heads
    # share counts more than the estimated edge.
    profile = np.exp(np.mean(np.log(np.maximum(spectrum, np.finfo(float).tiny)), axis=0))
    # Only in the first half (the last singular values of any square matrix spread out again) and only down to the
    # noise: a strong query bias makes the first value of a head of full rank stand out as well.
    falls, after = profile[:-1] / profile[1:], profile[1 : r // 2 + 1]
    usual = np.array([falls[i + 1 : i + 1 + calibration.STEP_AFTER].max(initial=1.0) for i in range(r // 2)])
    falls, noise = falls[: r // 2], calibration.RANK_NOISE * np.median(edge)
    step = (falls > calibration.RANK_STEP) & (falls - 1 > calibration.STEP_OVER_NOISE * (usual - 1))
    drops = np.flatnonzero(((falls > calibration.RANK_DROP) | step) & (after < noise)) + 1
    rank = int(drops[-1]) if len(drops) else rank
    return (rank if 1 <= rank <= r // 2 else None), spectrum, edge
