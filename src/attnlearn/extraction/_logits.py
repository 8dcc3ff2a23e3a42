"""Exact logits at one or many displacements: sigmoids of linear functions fitted without any derivative.

With the v_i known, the sigma_i follow from a linear solve and logit(sigma_i) = x^T Theta_i delta + c_i^T delta
exactly. With v_i and logits only nearly known, Gauss-Newton on G = sigma(X theta^T) V converges: multiplied by the
inverse of V (in the row space of G) its normal equations fall apart into one small problem per head,

    (G V^-1 - Sigma)_k = Sigma (dV V^-1)_k + diag(sigma'_k) X dtheta_k,

so that hundreds of displacements are solved at once. The sum rule sum_i v_i = delta S is one more row with all
sigma_i = 1; it decides the signs, which two tokens alone cannot.

The points are designed: with a first estimate of the slopes, points are chosen at which the logits take wanted
values (standard deviation 2, spread over magnitudes), and of many random designs the best conditioned one is used.
Cost: O(b n m (m + q)^2) per iteration for b displacements and n rows. What can fail: a start that is too far
away; the residual tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from attnlearn.engine._threads import limited_blas
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._probe import features, respond
from attnlearn.extraction._state import Inquiry, State
from attnlearn.solve._lm import Fit, Stopping, descend


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1/(1 + exp(-z)), without overflow.

    >>> float(sigmoid(np.array(0.0)))
    0.5
    """
    return 0.5 * (1 + np.tanh(0.5 * z))


SEVERAL = "several heads have logits that do not depend on the query"


class SliceFailed(Exception):
    """The heads could not be separated at this displacement; `evidence` says why."""

    def __init__(self, cause: str, **evidence: Any) -> None:
        super().__init__(cause)
        self.evidence = {"cause": cause, **evidence}


@dataclass(frozen=True)
class Slice:
    """All heads at one displacement: points in a basis, logit slopes (coordinates, 1, row) and values v_i.

    With `constant_head` the last head does not depend on x: only the second last of its slopes is not zero. With
    `dependent` values the basis is whole and slices are solved jointly.
    """

    delta: Float[np.ndarray, "d"]
    basis: Float[np.ndarray, "d q"]
    points: Float[np.ndarray, "n q"]
    slopes: Float[np.ndarray, "m p"]
    values: Float[np.ndarray, "m o"]
    constant_head: bool
    amplification: float
    dependent: bool = False

    def into(self, state: State) -> State:
        """The state with this slice."""
        return replace(state, **self.__dict__)


def free_slopes(heads: int, width: int, constant_head: bool) -> Bool[np.ndarray, "m p"]:
    """Which slopes are unknowns: of a constant head only the intercept.

    >>> free_slopes(2, 3, True).tolist()
    [[True, True, True], [False, True, False]]
    """
    free = np.ones((heads, width), bool)
    if constant_head:
        free[-1] = False
        free[-1, -2] = True
    return free


def linear_logits(x: Float[np.ndarray, "r p"], weights: Float[np.ndarray, "r m"]) -> Float[np.ndarray, "m p"]:
    """Slopes of logit(weights), rows weighted by sigma (1 - sigma), the inverse error of a logit.

    >>> x = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> linear_logits(x, sigmoid(x @ np.array([[0.5], [-1.0]]))).round(6).tolist()
    [[0.5, -1.0]]
    """
    inside = np.clip(weights, 1e-3, 1 - 1e-3)
    trust = np.where((weights > 0.01) & (weights < 0.99), inside * (1 - inside), 1e-6)
    logits = np.log(inside / (1 - inside))
    systems = zip(x * trust.T[:, :, None], (logits * trust).T)
    return np.stack([np.linalg.lstsq(*system, rcond=1e-10)[0] for system in systems])


def exact_slice(
    inquiry: Inquiry,
    delta: np.ndarray,
    basis: np.ndarray,
    start: Float[np.ndarray, "m p"],
    values: Float[np.ndarray, "m o"],
    rng: np.random.Generator,
) -> tuple[Slice, dict[str, Any]]:
    """Design points from the first estimate, ask there, add a constant head if the sum rule wants one, solve."""
    state, heads = inquiry.state, len(start)
    q = basis.shape[1]
    if q > heads:  # the span of the slopes is all that logits see
        turn = np.linalg.svd(start[:, :q])[2][:heads].T
        basis, start = basis @ turn, np.c_[start[:, :q] @ turn, start[:, q:]]
        q = heads
    shortest = float(np.linalg.norm(values, axis=1).min(initial=np.inf))
    amplification, points = design(start, points_wanted(heads, q, state, shortest), state, rng)
    g = respond(inquiry, points @ basis.T, delta[None])
    x = features(points, state.causal)
    start, values, constant = _with_constant_head(start, values, x, g[0], delta @ state.total, state.noise)
    if not len(start):
        raise SliceFailed("no head stands out of the noise")
    slopes, solved, residual, outside = solve_slices(
        start[None], x, g, (delta @ state.total)[None], free_slopes(len(start), q + 2, constant)
    )
    limit = slice_limit(state.noise, g)
    unsolved = not max(residual[0], outside[0]) <= limit
    if unsolved and constant and _several_constant(start, x, g, delta @ state.total, limit):
        raise SliceFailed(SEVERAL)
    found = Slice(delta, basis, points, slopes[0], solved[0], constant, amplification)
    return found, {
        "num_heads": len(start),
        "constant_head": constant,
        "amplification": amplification,
        "slice_residual": float(residual[0]),
        "outside_span": float(outside[0]),
        "solved": not unsolved,
    }


def points_wanted(heads: int, q: int, state: State, shortest: float) -> int:
    """Points of a slice whose shortest value has this length: a few more equations than unknowns, and four times as many in noise."""
    rows = heads + q + 1  # m + q + 2 unknowns per head, and the sum rule is a row
    coarse = state.noise > calibration.DESIGN_COARSE * shortest
    return (rows if state.causal else (rows + 1) // 2) * (4 if coarse else 1) + calibration.DESIGN_SURPLUS


def slice_limit(noise: float, g: np.ndarray) -> float:
    """Residual of one scalar below which a slice counts as solved."""
    size = float(np.sqrt(np.mean(g**2)))
    limit = min(calibration.CONVERGED * noise, calibration.CONVERGED_MOST * size)
    return max(
        limit, calibration.CONVERGED_COARSE * noise, calibration.CONVERGED_RELATIVE * size * (noise < 1e-12)
    )


def _with_constant_head(start, values, x, g, target, noise):
    """Append a head with constant logit when the values do not add up to delta S."""
    rest = target - values.sum(0)
    size = max(np.linalg.norm(target), np.linalg.norm(values, axis=1).max(initial=0.0))
    if np.linalg.norm(rest) <= max(calibration.SUM_RULE * size, 100 * noise * np.sqrt(len(rest))):
        return start, values, False
    left = (g - sigmoid(x @ start.T) @ values).mean(0)
    share = np.clip(left @ rest / (rest @ rest), 0.01, 0.99)
    row = np.zeros((1, x.shape[1]))
    row[0, -2] = np.log(share / (1 - share))
    return np.vstack([start, row]), np.vstack([values, rest]), True


def _several_constant(start, x, g, target, limit) -> bool:
    """Whether a constant of any direction explains the answers: several heads whose logits do not depend on x.

    Two heads of fixed logits, with free values, are any constant and any rest of the sum rule.
    """
    fixed = np.zeros((2, start.shape[1]))
    fixed[:, -2] = 1.0, -1.0
    start = np.vstack([start[:-1], fixed])
    free = np.ones(start.shape, bool)
    free[-2:] = False
    _, _, residual, outside = solve_slices(start[None], x, g, target[None], free)
    return bool(max(residual[0], outside[0]) <= limit)


@limited_blas(1)
def design(
    start: Float[np.ndarray, "m p"], number: int, state: State, rng: np.random.Generator
) -> tuple[float, Float[np.ndarray, "n q"]]:
    """Points whose logits are spread as wanted; the best conditioned of many random designs."""
    heads, q = len(start), start.shape[1] - 2
    if heads == 0:
        return 1.0, np.zeros((number, 0))
    inverse = np.linalg.pinv(start[:, :q], rcond=1e-3)
    typical = calibration.DESIGN_REACH * state.scale * np.sqrt(len(state.total))
    best: Any = None
    for _ in range(calibration.DESIGN_TRIES):
        logits = calibration.DESIGN_LOGIT * rng.standard_normal((number, heads))
        logits *= rng.uniform(0.3, 1.3, (number, 1))
        shift = start[:, q] - (0 if state.causal else 0.5 * start[:, q + 1])
        points = (logits - shift) @ inverse.T
        value = noise_amplification(start, features(points, state.causal))
        value *= 1 + np.linalg.norm(points, axis=1).max() / typical
        if best is None or value < best[0]:
            best = (value, points)
    return best


def noise_amplification(start: Float[np.ndarray, "m p"], x: Float[np.ndarray, "r p"]) -> float:
    """Largest inverse singular value of the decoupled Gauss-Newton systems (columns of unit size)."""
    weights = sigmoid(x @ start.T)
    sizes = np.abs(x).max(0)
    seen = sizes > 0  # the row feature of a causal layer is always 0
    system = _systems(weights[None], x[:, seen] / sizes[seen])[0]
    smallest = np.linalg.svd(system, compute_uv=False)[:, -1]
    return float(1 / max(smallest.min(), 1e-30))


def _systems(weights: Float[np.ndarray, "b r m"], x: Float[np.ndarray, "r p"]) -> np.ndarray:
    """Per displacement and head the matrix (Sigma, diag(sigma'_k) X), with the row of the sum rule last."""
    b, r, m = weights.shape
    slopes = (weights * (1 - weights)).transpose(0, 2, 1)[..., None] * x
    sigma = np.concatenate([weights, np.ones((b, 1, m))], 1)[:, None]
    slopes = np.concatenate([slopes, np.zeros((b, m, 1, x.shape[1]))], 2)
    return np.concatenate([np.broadcast_to(sigma, (b, m, r + 1, m)), slopes], 3)


def solve_slices(
    slopes: Float[np.ndarray, "b m p"],
    x: Float[np.ndarray, "r p"],
    g: Float[np.ndarray, "b r o"],
    target: Float[np.ndarray, "b o"],
    free: Bool[np.ndarray, "m p"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Decoupled Gauss-Newton for all displacements at once.

    Returns slopes, values (b, m, o), the residual of one scalar inside the span and the part of g outside it.
    """
    m = slopes.shape[1]
    rows = np.concatenate([g, target[:, None]], 1)
    left, singular, span = np.linalg.svd(rows, full_matrices=False)
    inside = left[:, :, :m] * singular[:, None, :m]
    outside = np.sqrt((singular[:, m:] ** 2).sum(1) / rows[0].size)
    sizes = np.abs(x).max(0).clip(1e-300)
    found = descend(
        _Slices(x / sizes, inside, free),
        slopes * sizes,
        calibration.SLICE_DAMPING,
        Stopping(calibration.SLICE_STEPS, calibration.SLICE_GAIN),
    )
    cost, _, _, values = found.fit
    return found.unknowns / sizes, values @ span[:, :m], np.sqrt(cost / (rows.shape[1] * m)), outside


class _Slices:
    """Slopes of all displacements, the values eliminated: one small system per displacement and head."""

    def __init__(
        self, x: Float[np.ndarray, "r p"], inside: Float[np.ndarray, "b s m"], free: Bool[np.ndarray, "m p"]
    ) -> None:
        self.x, self.inside, self.free = x, inside, free

    def evaluate(self, slopes: Float[np.ndarray, "b m p"], which: np.ndarray) -> Fit:
        """Squared residual, answers in their span, sigmoids with the sum-rule row, and the values that fit them best."""
        sigma, q, r = sigmoids(slopes, self.x)
        inside = self.inside[which]
        image = np.swapaxes(q, 1, 2) @ inside
        return np.sum((inside - q @ image) ** 2, axis=(1, 2)), inside, sigma, np.linalg.solve(r, image)

    def step(self, fit: Fit, damping: np.ndarray) -> Float[np.ndarray, "b m p"]:
        """One damped Gauss-Newton step, by QR."""
        _, inside, sigma, values = fit
        m, free = sigma.shape[2], self.free
        tiny = 1e-14 * np.abs(values).max((1, 2), keepdims=True) * np.eye(m)
        goal = (inside @ np.linalg.inv(values + tiny) - sigma).transpose(0, 2, 1)
        system = _systems(sigma[:, :-1], self.x)
        system[..., m:] *= free[None, :, None, :]
        norms = np.sqrt((system**2).sum(2))
        norms = np.where(norms > 0, norms, 1.0)
        system = system / norms[:, :, None]
        width = system.shape[3]
        ridge = np.sqrt(damping)[:, None, None, None] * np.eye(width)
        ridge = np.broadcast_to(ridge, (*system.shape[:2], width, width))
        q, r = np.linalg.qr(np.concatenate([system, ridge], 2))
        goal = np.concatenate([goal, np.zeros((*goal.shape[:2], width))], 2)
        solution = np.linalg.solve(r, np.swapaxes(q, 2, 3) @ goal[..., None])[..., 0]
        return (solution / norms)[..., m:] * free


def sigmoids(
    slopes: Float[np.ndarray, "b m p"], x: Float[np.ndarray, "r p"], shift: Any = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sigmoids with the sum-rule row (b, r + 1, m), and their QR factors, the second one safe to divide by."""
    weights = sigmoid(np.swapaxes(slopes @ x.T, 1, 2) + shift)
    sigma = np.concatenate([weights, np.ones((len(slopes), 1, slopes.shape[1]))], 1)
    q, r = np.linalg.qr(sigma)
    return sigma, q, r + calibration.SLICE_RIDGE * np.abs(r).max((1, 2), keepdims=True) * np.eye(r.shape[1])
