"""The comparator theta* = theta_0 + radius v and the step, both fixed before the run.

v is the direction of the tangent kernel's hard margin. Of more than TANGENT_EXAMPLES examples it is found on working sets:
the examples that hold the direction stay, the ones it serves worst join them, until it serves all (a cutting-plane
method). The margin gamma that is reported is the least over *all* examples, whatever the working sets did, so it is never
too large. Any theta* is allowed: L* is evaluated on all examples, and the direction of the mean gradient is tried
beside v, because a few contradictory labels bend v. Direction and radius minimise
2 L*(radius) + 3 radius^2 / (4 eta K), the run-verified bound before the run; 0 is among the radii. step="auto" starts from
4 n / lambda_max(K), the inverse of the Gauss-Newton bound at theta_0 (l'' <= 1/4), and is halved when a step
does not descend; step="theory" takes the training theorem's limit. Cost: a kernel and a QP for every working set, RADII
forward passes. What can fail: nothing; a direction that does not separate gives a loose bound, and says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn._jax import jax, jnp
from attnlearn.training import _bounds
from attnlearn.training._calibration import (
    HOLDING,
    MARGIN_ROUNDS,
    MARGIN_TOLERANCE,
    RADII,
    RADIUS_RANGE,
    ROUNDING_UNITS,
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
    slopes_along,
    tangent_kernel,
)


class Tangent(NamedTuple):
    """Margin gamma of all examples at the start, its direction v, and lambda_max(K) / n of the first working set.

    `size` is the root mean square gradient and `examples` the number of the first working set, `rounds` how many
    working sets there were. `mean` is the direction of the mean gradient of all examples. gamma <= 0: no direction was found that separates the labels.
    """

    margin: float
    direction: Weights
    mean: Weights
    eigenvalue: float
    size: float
    examples: int
    rounds: int


class Comparator(NamedTuple):
    """theta*, its loss L* and its distance D from the start."""

    weights: Weights
    loss: float
    distance: float


def to_device(chunks: Chunks) -> Chunks:
    """The chunks as JAX arrays, converted once."""
    return Chunks(*(jnp.asarray(part) for part in chunks))


def working_set(problem: Problem, start: Weights, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """All examples, or as many random ones as the kernel may have, and their tangent kernel at `start`."""
    num = len(problem.x)
    chosen = np.arange(num)
    if num > TANGENT_EXAMPLES:
        chosen = np.sort(rng.permutation(num)[:TANGENT_EXAMPLES])
    return chosen, _kernel(problem, start, chosen)


def tangent(problem: Problem, start: Weights, rng: np.random.Generator) -> Tangent:
    """Margin of all examples and its direction at `start`; call inside `precision`."""
    chosen, kernel = working_set(problem, start, rng)
    examples = len(chosen)
    size = float(np.sqrt(max(np.trace(kernel, dtype=np.float64) / examples, np.finfo(np.float32).tiny)))
    eigenvalue = largest_eigenvalue(kernel)
    best: tuple[float, Weights] | None = None
    rounds = 0
    while True:
        rounds += 1
        found = separate(kernel, problem.y[chosen])
        direction = _combine(problem, start, chosen, found.coefficients)
        slopes, margin = _margins(problem, start, direction)
        # Without a separating direction the first one serves: it is made from examples that were not picked.
        if best is None or margin > max(best[0], 0):
            best = margin, direction
        served = margin >= (1 - MARGIN_TOLERANCE) * found.margin
        if examples == len(problem.x) or served or found.margin <= 0 or rounds == MARGIN_ROUNDS:
            return Tangent(*best, _mean(problem, start), eigenvalue, size, examples, rounds)
        # Examples that hold the direction, then the worst served; equally many each time, so nothing is compiled anew.
        share = np.abs(found.coefficients)
        holding = chosen[share > HOLDING * share.max()]
        slopes[holding] = -np.inf
        chosen = np.sort(np.argsort(slopes, kind="stable")[:examples])
        kernel = _kernel(problem, start, chosen)


def _kernel(problem: Problem, start: Weights, chosen: np.ndarray) -> np.ndarray:
    scales = equal_scales(problem.num_heads, problem.dtype)
    return np.asarray(tangent_kernel(problem.model, start, scales, jnp.asarray(problem.x[chosen])))


def _combine(problem: Problem, start: Weights, chosen: np.ndarray, coefficients: np.ndarray) -> Weights:
    """sum_i coefficients_i grad Phi_i over the chosen examples."""
    x, heads = problem.x[chosen], problem.num_heads
    pieces = cut(x, coefficients.astype(x.dtype), heads, weight=np.ones(len(x), x.dtype))
    factors = pieces.y * pieces.weight  # padding has weight 0
    scales = equal_scales(heads, problem.dtype)
    return Weights(*map(np.asarray, combine_gradients(problem.model, start, scales, pieces.x, factors)))


def _mean(problem: Problem, start: Weights) -> Weights:
    """The unit vector along sum_i y_i grad Phi_i: it serves most examples where a few contradict the others."""
    total = _combine(problem, start, np.arange(len(problem.x)), problem.y)
    return Weights(*(part / _length(total) for part in total))


def _length(direction: Weights) -> float:
    squares = sum((np.asarray(part, np.float64) ** 2).sum() for part in direction)
    return max(float(np.sqrt(squares)), float(np.finfo(np.float32).tiny))


def _margins(problem: Problem, start: Weights, direction: Weights) -> tuple[np.ndarray, float]:
    """y_i <grad Phi_i, v/‖v‖> of all examples, and their least value less what rounding may have added."""
    pieces = cut(problem.x, problem.y, problem.num_heads)
    scales = equal_scales(problem.num_heads, problem.dtype)
    slopes = slopes_along(problem.model, start, direction, scales, jnp.asarray(pieces.x))
    slopes = problem.y * np.asarray(slopes, np.float64).reshape(-1)[: len(problem.x)] / _length(direction)
    beta1, _ = problem.constants(read_out_norm(start))
    return slopes, float(slopes.min() - ROUNDING_UNITS * np.finfo(problem.dtype).eps * beta1)


def choose_comparator(
    problem: Problem, start: Weights, found: Tangent, step: float, chunks: Chunks
) -> Comparator:
    """The radius with the smallest run-verified bound, and the comparator there."""
    least, most = RADIUS_RANGE
    most /= max(found.margin, SMALLEST_MARGIN * found.size)
    radii = np.geomspace(least / found.size, most, RADII)
    if problem.step != "theory":  # the theorem wants D > 0, and its step needs D
        radii = np.concatenate([[0.0], radii])
    scales = equal_scales(problem.num_heads, problem.dtype)
    directions = (found.direction, found.mean)
    numbers = (jnp.asarray(radii, problem.dtype), scales, chunks)
    losses = np.array([losses_along(problem.model, start, v, *numbers) for v in directions], np.float64)
    cost = 2 * losses + 3 * radii**2 / (4 * step * problem.max_steps)
    best = np.unravel_index(np.argmin(np.where(np.isfinite(cost), cost, np.inf)), cost.shape)
    direction, radius = directions[best[0]], radii[best[1]]
    weights = jax.tree.map(lambda p, v: (p + radius * v).astype(problem.dtype), start, direction)
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
