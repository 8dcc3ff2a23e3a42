"""Heads whose values depend on each other: the sum of sigmoids fitted as a whole, from random starts.

When the v_i = delta W_i are dependent (more heads than outputs, parallel W_i, parities that all write to one output) no
linear solve tells the sigma_i apart, and Jacobians are not jointly diagonal. What is left is the nonlinear problem

    G = sigma(X theta^T + shift) V    in theta and V,    the last row the sum rule, where all sigma are 1.

V is eliminated and theta moves by Levenberg-Marquardt (Kaufman's variable projection), many starts at once. The slopes
are searched for in the span that Jacobians show, which is small for parities; the number of heads starts at the rank
of the unfolding, a lower bound, and grows until the answers are explained. Some of the queries have their second token
doubled (shift -log 2): heads whose values cancel could otherwise change their signs together.

Cost: 2 d queries per base point, then a few per unknown; O(starts rows d_out (m p)^2) a step. What can fail: no start
leads to the answer; that becomes likely above about ten heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._logits import Slice, SliceFailed, sigmoids, slice_limit
from attnlearn.extraction._probe import difference_points, features, jacobians, respond
from attnlearn.extraction._state import Inquiry
from attnlearn.solve._lm import Fit, Stopping, descend

DEPENDENT = "heads whose values depend on each other were not told apart"


def dependent_slice(
    inquiry: Inquiry, delta: Float[np.ndarray, "d"], step: float, rng: np.random.Generator
) -> tuple[Slice, dict[str, Any]]:
    """All heads at this displacement, at points in general position."""
    state = inquiry.state
    heads, basis = _span(inquiry, delta, step, rng)
    evidence: dict[str, Any] = {"heads_at_least": heads, "slope_directions": basis.shape[1]}
    if heads * (basis.shape[1] + 2) > calibration.SEARCH_UNKNOWNS:
        raise SliceFailed(DEPENDENT, **evidence)
    slopes = _search(inquiry, delta, basis, heads, rng, evidence)
    heads, d = len(slopes), len(delta)
    whole = np.c_[slopes[:, :-2] @ basis.T, slopes[:, -2:]]
    points = _spread(inquiry, _enough(inquiry, heads, d), d, rng)
    g = respond(inquiry, points, delta[None])
    x = features(points, state.causal)
    fitted, values, residual = solve_joint(
        whole[None], x, np.zeros(len(x)), with_sum(g, delta[None], state.total)
    )
    evidence |= {"num_heads": heads, "slice_residual": float(residual[0])}
    if not residual[0] <= _limit(state.noise, g):
        raise SliceFailed(DEPENDENT, **evidence)
    return Slice(delta, np.eye(d), points, fitted[0], values[0], False, 1.0, dependent=True), evidence


def _span(
    inquiry: Inquiry, delta: np.ndarray, step: float, rng: np.random.Generator
) -> tuple[int, Float[np.ndarray, "d r"]]:
    """A lower bound of the number of heads, and the directions in which logits have slopes."""
    state, d = inquiry.state, len(delta)
    length = step * state.scale * np.sqrt(d) / calibration.LOGIT_STD
    number, slopes = calibration.SEARCH_BASES, np.zeros((0, d, len(state.bias)))
    while True:
        ends = difference_points(_spread(inquiry, number, d, rng), length)
        slopes = np.concatenate([slopes, jacobians(respond(inquiry, ends, delta[None])[0], d, length)])
        error = state.noise / length * (np.sqrt(len(slopes)) + np.sqrt(slopes[0].size))
        singular = np.linalg.svd(slopes.reshape(len(slopes), -1), compute_uv=False)
        edge = calibration.RANK_NOISE * (error + step**2 * singular[0])
        heads = int(np.sum(singular > edge))
        if heads < 0.7 * len(slopes):
            break
        if len(slopes) > calibration.SEARCH_BASES_MOST:
            raise SliceFailed("no finite number of heads", heads_at_least=heads)
        number *= 2
    vectors, singular, _ = np.linalg.svd(slopes.transpose(1, 0, 2).reshape(d, -1), full_matrices=False)
    return max(heads, 1), vectors[:, : max(1, int(np.sum(singular > edge)))]


def _search(
    inquiry: Inquiry,
    delta: np.ndarray,
    basis: np.ndarray,
    heads: int,
    rng: np.random.Generator,
    evidence: dict[str, Any],
) -> Float[np.ndarray, "m p"]:
    """Logit slopes in `basis` that explain random points there, plain and with the second token doubled."""
    state, q = inquiry.state, basis.shape[1]
    most = heads + calibration.SEARCH_MORE
    number = _enough(inquiry, most, q)
    points = _spread(inquiry, number, q, rng)
    twice = points[: number // 2]
    plain, doubled = (respond(inquiry, p @ basis.T, delta[None], n)[0] for p, n in ((points, 1), (twice, 2)))
    g = np.vstack([plain, doubled])
    x = np.vstack([features(points, state.causal), features(twice, state.causal)])
    shift = np.repeat([0.0, -np.log(2)], [len(plain), len(doubled)])
    rows = with_sum(g[None], delta[None], state.total)
    typical = np.linalg.norm(points, axis=1).mean()
    for count in range(heads, most + 1):
        start = rng.standard_normal((calibration.SEARCH_STARTS, count, q + 2))
        start[..., :q] *= calibration.DESIGN_LOGIT / typical
        limit = _limit(state.noise, g)
        slopes, _, residual = solve_joint(start, x, shift, rows, enough=limit)
        best = int(np.argmin(residual))
        evidence["search"] = {**evidence.get("search", {}), str(count): float(residual[best])}
        if residual[best] <= limit:
            return slopes[best]
    raise SliceFailed(DEPENDENT, **evidence)


def _limit(noise: float, g: np.ndarray) -> float:
    """Residual that explains the answers: fewer heads than there are may come within 1e-9 of them."""
    exact = max(calibration.CONVERGED * noise, calibration.SEARCH_EXACT * float(np.sqrt(np.mean(g**2))))
    return min(slice_limit(noise, g), exact)


def _spread(inquiry: Inquiry, number: int, q: int, rng: np.random.Generator) -> Float[np.ndarray, "n q"]:
    """Points of the chosen scale, near and far."""
    state = inquiry.state
    reach = rng.uniform(*calibration.SEARCH_SPREAD, (number, 1))
    return reach * rng.standard_normal((number, q)) * state.scale * np.sqrt(len(state.total) / q)


def _enough(inquiry: Inquiry, heads: int, q: int) -> int:
    """Queries that give a few equations per unknown, if the values of all heads span one direction only."""
    rows = calibration.SEARCH_EQUATIONS * heads * (q + 3)
    return int(np.ceil(rows if inquiry.state.causal else rows / 2))


def with_sum(
    g: Float[np.ndarray, "b r o"], deltas: Float[np.ndarray, "b d"], total: Float[np.ndarray, "d o"]
) -> Float[np.ndarray, "b s o"]:
    """Answers with the sum rule as their last row.

    >>> with_sum(np.zeros((1, 2, 1)), np.ones((1, 1)), np.full((1, 1), 3.0))[0].ravel().tolist()
    [0.0, 0.0, 3.0]
    """
    return np.concatenate([g, (deltas @ total)[:, None]], 1)


def solve_joint(
    slopes: Float[np.ndarray, "b m p"],
    x: Float[np.ndarray, "r p"],
    shift: Float[np.ndarray, "r"],
    rows: Float[np.ndarray, "b s o"],
    enough: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levenberg-Marquardt from every start; slopes, values (b, m, o) and the residual of one scalar.

    `rows` may be one problem for all starts. The first residual that is `enough` ends all.
    """
    sizes = np.abs(x).max(0).clip(1e-300)
    rows = np.broadcast_to(rows, (len(slopes), *rows.shape[1:]))
    scale = np.sqrt(np.mean(rows**2, axis=(1, 2))).clip(1e-300)
    stopping = Stopping(
        calibration.SEARCH_STEPS, calibration.SEARCH_GAIN, (enough / scale) ** 2 * rows[0].size
    )
    problem = _Sums(x / sizes, shift, rows / scale[:, None, None])
    found = descend(problem, slopes * sizes, calibration.SEARCH_DAMPING, stopping)
    cost, _, _, values, _ = found.fit
    return found.unknowns / sizes, values * scale[:, None, None], scale * np.sqrt(cost / rows[0].size)


class _Sums:
    """Slopes of sums of sigmoids, the values eliminated."""

    def __init__(
        self, x: Float[np.ndarray, "r p"], shift: Float[np.ndarray, "r"], rows: Float[np.ndarray, "b s o"]
    ) -> None:
        self.x, self.shift, self.rows = x, shift, rows

    def evaluate(self, slopes: Float[np.ndarray, "b m p"], which: np.ndarray) -> Fit:
        """Squared residual, sigmoids with the sum-rule row, a basis of them, the best values, and what these leave."""
        sigma, q, r = sigmoids(slopes, self.x, self.shift[:, None])
        image = np.swapaxes(q, 1, 2) @ self.rows[which]
        rest = self.rows[which] - q @ image
        return np.sum(rest**2, axis=(1, 2)), sigma, q, np.linalg.solve(r, image), rest

    def step(self, fit: Fit, damping: np.ndarray) -> Float[np.ndarray, "b m p"]:
        """The damped Gauss-Newton step, by normal equations."""
        _, sigma, q, values, rest = fit
        b, s, m = sigma.shape
        width = self.x.shape[1]
        moves = np.concatenate([self.x, np.zeros((1, width))])[:, None] * (sigma * (1 - sigma))[..., None]
        moves = moves.reshape(b, s, m * width)
        moves = (moves - q @ (np.swapaxes(q, 1, 2) @ moves)).reshape(b, s, 1, m, width)
        jacobian = (moves * np.swapaxes(values, 1, 2)[:, None, :, :, None]).reshape(b, -1, m * width)
        normal = np.swapaxes(jacobian, 1, 2) @ jacobian
        slope = (np.swapaxes(jacobian, 1, 2) @ rest.reshape(b, -1, 1))[..., 0]
        diagonal = np.einsum("bkk->bk", normal)
        unit = np.sqrt(np.maximum(diagonal, 1e-12 * diagonal.max(1, keepdims=True)).clip(1e-300))
        normal = normal / unit[:, :, None] / unit[:, None, :] + damping[:, None, None] * np.eye(m * width)
        return (np.linalg.solve(normal, (slope / unit)[..., None])[..., 0] / unit).reshape(b, m, width)
