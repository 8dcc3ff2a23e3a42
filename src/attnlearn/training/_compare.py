"""The comparator theta* = theta_0 + radius v and the step, both fixed before the run.

v is the direction of the tangent kernel's hard margin (of at most TANGENT_EXAMPLES examples); any theta* is
allowed, so a subset only costs tightness: L* is evaluated on all examples. The radius minimises
2 L*(radius) + 3 radius^2 / (4 eta K), the run-verified bound before the run. step="auto" starts from
4 n / lambda_max(K), the inverse of the Gauss-Newton bound at theta_0 (l'' <= 1/4), and is halved when a step
does not descend; step="theory" takes the training theorem's limit. Cost: the kernel, the QP, RADII forward
passes. What can fail: nothing; a direction that does not separate gives a loose bound, and says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnlearn.training import _bounds
from attnlearn.training._calibration import (
    RADII,
    RADIUS_RANGE,
    SMALLEST_MARGIN,
    TANGENT_EXAMPLES,
    THEORY_ROUNDS,
)
from attnlearn.training._initialize import read_out_norm
from attnlearn.training._loss import Chunks, cut
from attnlearn.training._model import Weights, equal_scales
from attnlearn.training._problem import Problem
from attnlearn.training._tangent import (
    combine_gradients,
    largest_eigenvalue,
    losses_along,
    separate,
    tangent_kernel,
)


class Tangent(NamedTuple):
    """Margin gamma at the start, its direction v, lambda_max(K) / n, root mean square gradient, examples used."""

    margin: float
    direction: Weights
    eigenvalue: float
    size: float
    examples: int


class Comparator(NamedTuple):
    """theta*, its loss L* and its distance D from the start."""

    weights: Weights
    loss: float
    distance: float


def to_device(chunks: Chunks) -> Chunks:
    """The chunks as JAX arrays, converted once."""
    return Chunks(*(jnp.asarray(part) for part in chunks))


def tangent(problem: Problem, start: Weights, rng: np.random.Generator) -> Tangent:
    """Margin and direction of the tangent kernel at `start`; call inside `precision`."""
    num, heads = len(problem.x), problem.num_heads
    chosen = np.arange(num)
    if num > TANGENT_EXAMPLES:
        chosen = np.sort(rng.permutation(num)[:TANGENT_EXAMPLES])
    x, y = problem.x[chosen], problem.y[chosen]
    scales = equal_scales(heads, problem.dtype)
    kernel = np.asarray(tangent_kernel(problem.model, start, scales, jnp.asarray(x)))
    found = separate(kernel, y)
    pieces = cut(x, found.coefficients.astype(x.dtype), heads, weight=np.ones(len(x), x.dtype))
    coefficients = pieces.y * pieces.weight  # padding has weight 0
    direction = combine_gradients(problem.model, start, scales, pieces.x, coefficients)
    size = float(np.sqrt(max(np.trace(kernel, dtype=np.float64) / len(x), np.finfo(np.float32).tiny)))
    top = max(largest_eigenvalue(kernel), float(np.finfo(np.float32).tiny))
    return Tangent(found.margin, Weights(*map(np.asarray, direction)), top, size, len(x))


def choose_comparator(
    problem: Problem, start: Weights, found: Tangent, step: float, chunks: Chunks
) -> Comparator:
    """The radius with the smallest run-verified bound, and the comparator there."""
    radii = np.geomspace(*RADIUS_RANGE, RADII) / max(found.margin, SMALLEST_MARGIN * found.size)
    scales = equal_scales(problem.num_heads, problem.dtype)
    args = (problem.model, start, found.direction, jnp.asarray(radii, problem.dtype), scales, chunks)
    losses = np.asarray(losses_along(*args), np.float64)
    cost = 2 * losses + 3 * radii**2 / (4 * step * problem.max_steps)
    best = int(np.nanargmin(np.where(np.isfinite(cost), cost, np.inf)))
    radius = radii[best]
    weights = jax.tree.map(lambda p, v: (p + radius * v).astype(problem.dtype), start, found.direction)
    away = [np.asarray(a, np.float64) - np.asarray(b, np.float64) for a, b in zip(weights, start)]
    distance = float(np.sqrt(sum((part**2).sum() for part in away)))
    return Comparator(Weights(*map(np.asarray, weights)), float(losses[best]), distance)


def choose_step(problem: Problem, start: Weights, found: Tangent, chunks: Chunks) -> float:
    """The step of the run; see the module's text."""
    step: Any = problem.first_step
    if step == "auto":
        return 4 / found.eigenvalue
    if step != "theory":
        return float(step)
    # The limit needs D and D needs the step: start at the smoothness of the start and settle in a few rounds.
    zero = jnp.zeros((1,), problem.dtype)
    scales = equal_scales(problem.num_heads, problem.dtype)
    loss_start = float(losses_along(problem.model, start, found.direction, zero, scales, chunks)[0])
    step = 1 / _rho(problem, read_out_norm(start))
    for _ in range(THEORY_ROUNDS):
        star = choose_comparator(problem, start, found, step, chunks)
        rho = _rho(problem, _bounds.norm_in_ball(read_out_norm(star.weights), star.distance))
        step = _bounds.step_limit(rho, star.distance, problem.max_steps, star.loss, loss_start)
    return step


def _rho(problem: Problem, norm: float) -> float:
    return _bounds.smoothness(*problem.constants(norm), problem.num_heads)
