"""Phase 2: two-token queries, their reduction to a sum of sigmoids, and the scale at which to ask them.

[x, x - delta] answers in row 1 with x, in row 2 (not causal: free) with x - delta as the query. Both reduce to

    g = F - b - (x - delta) S = sum_i sigma(z_i) v_i,    z_i = x^T Theta_i delta + c_i^T delta,    v_i = delta W_i,

with x - delta instead of x for row 2, whose logits are therefore z_i - delta^T Theta_i delta. A causal layer is
sent [x - delta, x] and only its last row is read.

The token scale s is found by asking the same directions at scales 2^-9 .. 2^9: ‖g(x) - g(x - delta)‖^2/s^2 grows
until the heads saturate, and s is where it has SCALE_SHARE of its largest value, |z| about 1 (median of three).
Cost: 3 sequences per scale. What can fail: three directions may mislead by a factor of a few, so later attempts at
separation vary the scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn.engine import Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._state import Inquiry, Problem, State, counts


def probe(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The token scale at which logits are about one."""
    inquiry = Inquiry(problem, state)
    grid = 2.0 ** np.arange(*calibration.SCALE_GRID)
    rng = tools.rng("scale")
    x, delta = rng.standard_normal((2, calibration.SCALE_SEQUENCES, problem.dim))
    asked = [_variation(inquiry, s * x, s * delta, s) for s in grid]
    varies, departs = (np.array([entry[index] for entry in asked]) for index in (0, 1))
    evidence: dict[str, Any] = {"scales": grid, "varies": varies.mean(1), "departs": departs.mean(1)}
    size = max(float(np.sum((delta @ state.total) ** 2)) / len(delta), state.noise**2)
    scale = problem.config.token_scale
    for curves in (varies, departs):
        crossings = [crossing(grid, curve) for curve in curves.T if curve.max() > 1e-6 * size]
        if scale is None and crossings:
            scale = float(np.median(crossings))
    scale = 1.0 if scale is None else scale
    noise = max(
        state.noise, calibration.EPSILONS * np.finfo(np.float64).eps * float(scale * np.sqrt(departs.max()))
    )
    span = onset_span(grid, varies.mean(1))
    evidence |= {"scale": scale, "onset_span": span, **counts(problem.oracle)}
    return inquiry.kept(scale=float(scale), noise=noise, onset_span=span), evidence


def crossing(grid: Float[np.ndarray, "g"], curve: Float[np.ndarray, "g"]) -> float:
    """Where the curve, followed down from its peak, falls below SCALE_SHARE of it (log-log interpolation).

    >>> round(crossing(np.array([1.0, 2.0, 4.0]), np.array([0.0625, 0.25, 1.0])), 2)
    1.79
    """
    level = calibration.SCALE_SHARE * curve.max()
    index = int(np.argmax(curve))
    while index > 0 and curve[index] >= level:
        index -= 1
    if curve[index] >= level:
        return float(grid[0])
    low, high = np.log(max(curve[index], 1e-300)), np.log(curve[index + 1])
    share = np.clip((np.log(level) - low) / (high - low), 0.0, 1.0)
    return float(grid[index] * (grid[index + 1] / grid[index]) ** share)


def onset_span(grid: Float[np.ndarray, "g"], curve: Float[np.ndarray, "g"]) -> float:
    """Ratio of the scales at which the curve first has 60 % and 1 % of its largest value; 1 if it starts above.

    Heads of one strength pass it within a factor of a few, since logits grow like the square of the scale.

    >>> onset_span(np.array([1.0, 2.0, 4.0]), np.array([0.0, 0.5, 1.0]))
    2.0
    """
    if curve[0] >= 0.01 * curve.max():
        return 1.0
    first, last = (grid[int(np.argmax(curve >= share * curve.max()))] for share in (0.01, 0.6))
    return float(last / first)


def _variation(inquiry: Inquiry, x: np.ndarray, delta: np.ndarray, s: float) -> tuple:
    """Per sequence the squared change of g between the two rows, and from delta S / 2, over s^2."""
    state = inquiry.state
    order = (1, 0) if state.causal else (0, 1)
    queries = np.stack([x, x - delta], 1)
    tokens, answers = inquiry.ask(queries[:, order], keep=False)
    if state.causal:
        other, other_answers = inquiry.ask(np.stack([x - 2 * delta, x - delta], 1), keep=False)
        rows = np.stack([answers[:, 1], other_answers[:, 1]], 1)
        ends = np.stack([tokens[:, 0], other[:, 0]], 1)
    else:
        rows, ends = answers, np.stack([tokens[:, 1]] * 2, 1)
    g = rows - state.bias - ends @ state.total
    half = 0.5 * delta @ state.total
    noise = 2 * g.shape[2] * (state.noise * max(1.0, s) / s) ** 2
    found = (np.sum(part**2, -1) / s**2 for part in (g[:, 0] - g[:, 1], g[:, 0] - half))
    varies, departs = (np.where(value > calibration.SCALE_NOISE * noise, value, 0.0) for value in found)
    return varies, departs


def respond(
    inquiry: Inquiry, x: Float[np.ndarray, "n d"], deltas: Float[np.ndarray, "b d"], times: int = 1
) -> Float[np.ndarray, "b r o"]:
    """g for every displacement: rows with query x first, then (not causal) with x - delta.

    With x - delta sent `times` times all logits are lower by log(times).
    """
    state = inquiry.state
    b, n, d = len(deltas), len(x), x.shape[1]
    first = np.broadcast_to(x, (b, n, d))
    second = [first - deltas[:, None]] * times
    sequence = [*second, first] if state.causal else [first, *second]
    # Not kept for the fit: hundreds of nearly equal queries would make its equations badly conditioned.
    tokens, answers = inquiry.ask(np.stack(sequence, 2).reshape(b * n, times + 1, d), keep=False)
    ends = tokens[:, 0 if state.causal else 1]
    g = answers - state.bias - (ends @ state.total)[:, None]
    g = g.reshape(b, n, times + 1, -1)
    return g[:, :, times] if state.causal else np.concatenate([g[:, :, 0], g[:, :, 1]], 1)


def features(points: Float[np.ndarray, "n q"], causal: bool) -> Float[np.ndarray, "r p"]:
    """(coordinates, 1, row): the logit is linear in these; `row` is -1 where x - delta is the query.

    >>> features(np.zeros((1, 1)), causal=False).tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, -1.0]]
    """
    one = np.ones(len(points))
    first = np.c_[points, one, 0 * one]
    return first if causal else np.vstack([first, np.c_[points, one, -one]])


def difference_points(points: Float[np.ndarray, "n q"], step: float) -> Float[np.ndarray, "r q"]:
    """Both ends of a central difference along every coordinate, for every base point.

    >>> difference_points(np.zeros((1, 1)), 0.5).tolist()
    [[0.5], [-0.5]]
    """
    q = points.shape[1]
    moves = step * np.concatenate([np.eye(q), -np.eye(q)])
    return (points[:, None] + moves).reshape(-1, q)


def jacobians(g: Float[np.ndarray, "r o"], q: int, step: float) -> Float[np.ndarray, "p q o"]:
    """Central differences of answers at `difference_points`, for base points of both kinds of rows."""
    g = g.reshape(-1, 2, q, g.shape[-1])
    return (g[:, 0] - g[:, 1]) / (2 * step)
