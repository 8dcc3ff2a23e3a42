"""Phase 3: the heads at one displacement delta, separated by jointly diagonalising Jacobians.

At base points x_p the Jacobian of g along a few directions is J_p = A diag(sigma'(z_i(x_p))) V, the same A and V
for every p. The number of heads whose score depends on x is the rank of the unfolding with rows vec J_p; it must
agree with the rank of the span of the v_i. A generalised eigenproblem of two random combinations of the J_p gives
the directions of the v_i; the combination under which all J_p are most nearly diagonal is used.

Only m + 2 directions of x are needed, not d: the v_i are common to all of them. The length and the sign of v_i
follow from sum_i v_i = delta S, or, when a head is constant in x, from sigma' = sigma (1 - sigma): as a function of
the coordinate h_i = v_i sigma_i + const the slope is a parabola whose roots are one length of v_i apart. The sign
is then decided by doubling the second token, which lowers the true logit by log 2.

Cost: (m + 2)(m + 5) sequences about. What can fail: heads with dependent v_i are left to `_joint`; if that fails, or if
Jacobians cannot show as many heads as the answers because two are too close, HEADS_INDISTINGUISHABLE; a delta at which
some head is saturated (another delta is tried).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn.engine import Stop, Tools
from attnlearn.engine._threads import limited_blas
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._joint import DEPENDENT, dependent_slice
from attnlearn.extraction._logits import SEVERAL, Slice, SliceFailed, exact_slice, linear_logits, sigmoid
from attnlearn.extraction._probe import difference_points, features, jacobians, respond
from attnlearn.extraction._state import Inquiry, Problem, State, counts


@dataclass(frozen=True)
class Rays:
    """Directions of the v_i, how steeply each base point moves along them, and how far from diagonal they are."""

    directions: Float[np.ndarray, "m o"]
    slopes: Float[np.ndarray, "p m"]
    misfit: float


def separate(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """A displacement at which every head was separated, and the exact logits there."""
    inquiry = Inquiry(problem, state)
    found, evidence = locate(inquiry, problem, tools, 0)
    evidence |= counts(problem.oracle)
    return found.into(inquiry.kept()), evidence


def locate(inquiry: Inquiry, problem: Problem, tools: Tools, attempt: int) -> tuple[Slice, dict[str, Any]]:
    """Try displacements, starting with the `attempt`-th, until one separates."""
    failures: list[dict[str, Any]] = []
    whole, dependent = inquiry.state, 0
    for number in range(attempt, attempt + calibration.ATTEMPTS):
        factor = calibration.ATTEMPT_SCALES[number % calibration.ATTEMPTS]
        inquiry.state = replace(whole, scale=factor * whole.scale)
        try:
            found, evidence = separate_at(inquiry, problem, tools.rng(f"slice {number}"))
        except SliceFailed as failure:
            failures.append(failure.evidence)
            dependent += failure.evidence["cause"] == DEPENDENT
            if dependent == calibration.SEARCHES:
                break
            continue
        finally:
            inquiry.state = whole
        return found, {"attempt": number, "scale_factor": factor, "failures": failures, **evidence}
    blurred = sum(failure.get("blurred", False) for failure in failures)
    several = sum(failure["cause"] == SEVERAL for failure in failures)
    wide = whole.onset_span > calibration.ONSET_SPAN
    if (
        wide
    ):  # a saturated head has no slope: that Jacobians show too few heads says nothing about two close ones
        blurred = 0
    close = dependent == calibration.SEARCHES or 2 * max(blurred, several) > len(failures)
    name = "HEADS_INDISTINGUISHABLE" if close else "SATURATED" if wide else "NOT_ATTENTION"
    raise Stop(name, {"failures": failures, **counts(problem.oracle)}, inquiry.kept())


def separate_at(inquiry: Inquiry, problem: Problem, rng: np.random.Generator) -> tuple[Slice, dict[str, Any]]:
    """Separate the heads at a random displacement, then solve it exactly at designed points."""
    state, d = inquiry.state, problem.dim
    delta = state.scale * rng.standard_normal(d)
    heads, singular = count_heads(inquiry, problem, delta, rng)
    evidence: dict[str, Any] = {"varying_heads": heads, "singular_values": singular[: heads + 4]}
    if heads == 0:
        empty = np.zeros((d, 0)), np.zeros((0, 2)), np.zeros((0, len(state.bias)))
        return _solved(inquiry, delta, *empty, rng, evidence)
    q = min(d, heads + 2)
    basis = np.linalg.qr(rng.standard_normal((d, q)))[0]
    base = (heads + 4) if state.causal else (heads + 5) // 2
    reach = np.linspace(*calibration.BASE_SPREAD, base)[:, None]
    points = reach * rng.standard_normal((base, q)) * state.scale * np.sqrt(d / q)
    relative = state.noise * np.sqrt(len(singular)) / singular[0]
    step = float(np.clip(relative ** (1 / 3), calibration.DIFFERENCE_LEAST, calibration.DIFFERENCE_MOST))
    length = step * state.scale * np.sqrt(d) / calibration.LOGIT_STD
    ends = difference_points(points, length)
    g = respond(inquiry, ends @ basis.T, delta[None])[0]
    slopes = jacobians(g, q, length)
    unfolded = np.linalg.svd(slopes.reshape(len(slopes), -1), compute_uv=False)
    evidence |= {"difference_step": step, "unfolding": unfolded / unfolded[0]}
    error = state.noise / length * (np.sqrt(len(slopes)) + np.sqrt(slopes[0].size))
    edge = calibration.RANK_NOISE * (error + step**2 * unfolded[0])
    # Answers show more heads than Jacobians do, which show at least one.
    evidence["blurred"] = bool(unfolded[heads - 1] <= edge and unfolded[0] > calibration.RANK_NOISE * error)
    if len(unfolded) > heads and unfolded[heads] > edge:
        found, more = dependent_slice(inquiry, delta, step, rng)
        return found, evidence | more
    rays = joint_rays(slopes, heads, rng)
    evidence["misfit"] = rays.misfit
    values, start = _lengths(inquiry, rays, basis, ends, g, delta, evidence)
    return _solved(inquiry, delta, basis, start, values, rng, evidence)


def _solved(inquiry, delta, basis, start, values, rng, evidence) -> tuple[Slice, dict[str, Any]]:
    """The exact slice from a first estimate, if it explains the answers at designed points."""
    found, more = exact_slice(inquiry, delta, basis, start, values, rng)
    evidence |= more
    if not more["solved"]:
        raise SliceFailed("designed points are not explained", **evidence)
    return found, evidence


def count_heads(
    inquiry: Inquiry, problem: Problem, delta: np.ndarray, rng: np.random.Generator
) -> tuple[int, np.ndarray]:
    """Rank of g over random query points, its mean removed: the heads that vary with x at this delta."""
    state, number = inquiry.state, calibration.COUNT_POINTS
    g = np.zeros((0, len(state.bias)))
    while True:
        fresh = state.scale * rng.standard_normal((number, problem.dim))
        g = np.vstack([g, respond(inquiry, fresh, delta[None])[0]])
        centred = g - g.mean(0)
        singular = np.linalg.svd(centred, compute_uv=False)
        edge = calibration.RANK_NOISE * state.noise * (np.sqrt(len(g)) + np.sqrt(g.shape[1]))
        heads = int(np.sum(singular > edge))
        if problem.num_heads is not None:
            heads = min(heads, problem.num_heads)
        if heads < 0.7 * len(g) or heads == g.shape[1] or len(g) >= calibration.COUNT_POINTS_MOST:
            return heads, singular
        number = len(g)


@limited_blas(1)
def joint_rays(slopes: Float[np.ndarray, "p q o"], heads: int, rng: np.random.Generator) -> Rays:
    """The v_i up to length: eigenvectors of the pencil that makes all Jacobians most nearly diagonal."""
    p, q, o = slopes.shape
    span = np.linalg.svd(slopes.reshape(-1, o), full_matrices=False)[2][:heads]
    left = np.linalg.svd(slopes.transpose(1, 0, 2).reshape(q, -1), full_matrices=False)[0][:, :heads]
    small = np.einsum("qa,pqo,mo->pam", left, slopes, span)
    best: tuple[float, np.ndarray] | None = None
    for _ in range(calibration.PENCILS):
        first, second = np.einsum("wp,pam->wam", rng.standard_normal((2, p)), small)
        try:
            _, vectors = np.linalg.eig(np.linalg.solve(first, second))
            dual = np.real(vectors)
            inverse = np.linalg.inv(dual)
        except np.linalg.LinAlgError:
            continue
        images = np.einsum("pam,mi->ipa", small, dual)
        energy = np.linalg.svd(images, compute_uv=False) ** 2
        misfit = float(np.sum(energy[:, 1:].sum(1) / energy.sum(1)))
        if np.isfinite(misfit) and np.isfinite(inverse).all() and (best is None or misfit < best[0]):
            best = (misfit, dual)
    if best is None:
        raise SliceFailed("no pencil has independent eigenvectors")
    dual = best[1]
    directions = np.linalg.inv(dual) @ span
    left_vectors = np.linalg.svd(np.einsum("pam,mi->ipa", small, dual), full_matrices=False)
    along = (left_vectors[0][:, :, 0] * left_vectors[1][:, :1]).T
    return Rays(directions, along, best[0])


def _lengths(
    inquiry: Inquiry,
    rays: Rays,
    basis: np.ndarray,
    ends: np.ndarray,
    g: np.ndarray,
    delta: np.ndarray,
    evidence: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray]:
    """Values v_i and logit slopes: lengths by the sum rule, or by the parabola and the doubled token."""
    state = inquiry.state
    target = delta @ state.total
    lengths = np.linalg.lstsq(rays.directions.T, target, rcond=None)[0]
    rest = np.linalg.norm(target - lengths @ rays.directions)
    scale = max(np.linalg.norm(target), np.linalg.norm(lengths[:, None] * rays.directions, axis=1).max())
    evidence["sum_rule"] = float(rest / scale)
    x = features(ends, state.causal)
    coordinates = g @ np.linalg.pinv(rays.directions)
    if rest <= calibration.SUM_RULE * scale:
        return lengths[:, None] * rays.directions, linear_logits(x, coordinates / lengths)
    middle = coordinates.reshape(len(rays.slopes), -1, len(lengths)).mean(1)
    lengths, offsets = parabola_lengths(rays.slopes, middle)
    values = lengths[:, None] * rays.directions
    start = linear_logits(x, (coordinates - offsets) / lengths)
    sign = doubled_signs(inquiry, basis, ends, delta, values, start)
    return sign[:, None] * values, sign[:, None] * start


def parabola_lengths(
    slopes: Float[np.ndarray, "p m"], coordinates: Float[np.ndarray, "p m"]
) -> tuple[np.ndarray, np.ndarray]:
    """Distance of the roots of the parabola slope(coordinate), and the lower root, for every head.

    >>> z = np.linspace(-2, 2, 7)
    >>> s = 1 / (1 + np.exp(-z))
    >>> length, offset = parabola_lengths((5 * s * (1 - s))[:, None], (3 * s + 1)[:, None])
    >>> round(float(length[0]), 6), round(float(offset[0]), 6)
    (3.0, 1.0)
    """
    lengths, offsets = np.zeros(slopes.shape[1]), np.zeros(slopes.shape[1])
    for head in range(slopes.shape[1]):
        powers = np.vander(coordinates[:, head], 3)
        a, b, c = np.linalg.lstsq(powers, slopes[:, head], rcond=None)[0]
        gap = b * b - 4 * a * c
        if not gap > 0 or a == 0:
            raise SliceFailed("the slope of a head is no parabola in its value")
        lengths[head] = np.sqrt(gap) / abs(a)
        offsets[head] = -b / (2 * a) - lengths[head] / 2
    return lengths, offsets


def doubled_signs(
    inquiry: Inquiry,
    basis: np.ndarray,
    points: np.ndarray,
    delta: np.ndarray,
    values: np.ndarray,
    start: np.ndarray,
) -> Float[np.ndarray, "m"]:
    """+1 where doubling the second token lowers the logit by log 2, -1 where it raises it."""
    chosen = points[np.linspace(0, len(points) - 1, calibration.DOUBLED_POINTS).astype(int)]
    x = chosen @ basis.T
    plain, doubled = (respond(inquiry, x, delta[None], times)[0][: len(x)] for times in (1, 2))
    change = (doubled - plain) @ np.linalg.pinv(values)
    logits = features(chosen, True) @ start.T
    expected = [sigmoid(logits - sign * np.log(2)) - sigmoid(logits) for sign in (1, -1)]
    miss = [np.sum((change - e - (change - e).mean(0)) ** 2, axis=0) for e in expected]
    return np.where(miss[0] <= miss[1], 1.0, -1.0)
