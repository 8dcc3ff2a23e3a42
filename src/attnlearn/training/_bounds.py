"""The bounds of the theory, one small pure function each; docs/guarantees.md proves them.

R bounds the token norms, M bounds max_h ‖U_h‖_F, `rows` is the number of read-out rows (T, or 1 for the
one-token read-out). The functions use operators only, so they work on floats, NumPy and traced JAX values.
Cost: none. What can fail: nothing; a bound may be infinite or larger than anything measured, never smaller.
"""

from __future__ import annotations

import math
from typing import Any

from attnlearn.training._calibration import (
    GENERALIZATION_FACTOR,
    HEADS_FACTOR,
    RADIUS_FACTOR,
    THIRD_MOMENT,
)


def beta1(rows: int, radius: Any, norm: Any) -> Any:
    """‖grad Phi‖ <= beta1 = sqrt(T) R sqrt(1 + R^4 M^2).

    >>> beta1(4, 1.0, 0.0)
    2.0
    """
    return rows**0.5 * radius * (1 + radius**4 * norm**2) ** 0.5


def beta2(rows: int, radius: Any, norm: Any) -> Any:
    """‖Hess Phi‖ <= beta2 / sqrt(H), beta2 = (e + sqrt(e^2 + 4 a^2)) / 2, a = sqrt(T) R^3, e = 0.7698 sqrt(T) R^5 M.

    >>> beta2(4, 1.0, 0.0)
    2.0
    """
    a = rows**0.5 * radius**3
    e = THIRD_MOMENT * rows**0.5 * radius**5 * norm
    return (e + (e**2 + 4 * a**2) ** 0.5) / 2


def smoothness(beta1: Any, beta2: Any, num_heads: int) -> Any:
    """lambda_max(Hess L) <= rho = beta1^2 / 4 + beta2 / sqrt(H).

    >>> smoothness(2.0, 2.0, 4)
    2.0
    """
    return beta1**2 / 4 + beta2 / num_heads**0.5


def norm_in_ball(comparator_norm: float, distance: float) -> float:
    """M* = max_h ‖U*_h‖ + sqrt(13/3) D: bounds max_h ‖U_h‖ on every iterate of the training theorem.

    >>> round(norm_in_ball(1.0, 3**0.5), 3)
    4.606
    """
    return comparator_norm + RADIUS_FACTOR * distance


def heads_needed(beta2: float, distance: float) -> float:
    """H >= ((169/24) beta2 D^2)^2.

    >>> heads_needed(24 / 169, 2.0)
    16.0
    """
    return (HEADS_FACTOR * beta2 * distance**2) ** 2


def step_limit(rho: float, distance: float, num_steps: int, loss_star: float, loss_start: float) -> float:
    """eta <= min(1 / rho, D^2 / (K L*), D^2 / L_0).

    >>> step_limit(2.0, 1.0, 10, 0.01, 0.7)
    0.5
    """
    limits = [1 / rho if rho > 0 else math.inf, distance**2 / loss_start]
    if loss_star > 0:
        limits.append(distance**2 / (num_steps * loss_star))
    return min(limits)


def mean_loss_bound(distance: float, loss_star: float, step: float, num_steps: int) -> float:
    """mean_{k=1..K} L_k <= 2 L* + 5 D^2 / (4 eta K), the training theorem's conclusion.

    >>> mean_loss_bound(2.0, 0.25, 0.5, 10)
    1.5
    """
    return 2 * loss_star + 5 * distance**2 / (4 * step * num_steps)


def run_bound(
    distance: float,
    distance_end: float,
    loss_star: float,
    loss_start: float,
    loss_end: float,
    step: float,
    num_steps: int,
    violations: float,
) -> float:
    """mean_{1..K} L_k <= 2 L* + 3 (D^2 - D_K^2)/(4 eta K) + (L_0 - L_K)/(2K) + (3/(2K)) sum (e_k + f_k).

    >>> run_bound(2.0, 1.0, 0.1, 0.7, 0.1, 0.5, 100, 0.0)
    0.248
    """
    travel = 3 * (distance**2 - distance_end**2) / (4 * step * num_steps)
    bound = 2 * loss_star + travel + (loss_start - loss_end) / (2 * num_steps)
    return bound + 3 * violations / (2 * num_steps)


def weighted_right_side(
    distance: float, distance_end: float, loss_star: float, total: float, squares: float, absorbed: float
) -> float:
    """(2/3) sum eta_k L_k <= (4/3) L* sum eta_k + (D^2 - D_K^2)/2 + (1/2) sum eta_k^2 ‖grad L_k‖^2 + sum eta_k f_k, this side.

    >>> weighted_right_side(2.0, 1.0, 0.75, 3.0, 0.5, 0.25)
    5.0
    """
    return 4 * loss_star * total / 3 + (distance**2 - distance_end**2) / 2 + squares / 2 + absorbed


def descent_bound(loss_start: Any, violations: Any) -> Any:
    """L_k <= L_0 + sum_j e_j for every k, hence for every mean: what descent alone gives.

    >>> descent_bound(0.75, 0.25)
    1.0
    """
    return loss_start + violations


def guessing_loss(share: float) -> float:
    """The least mean loss of a classifier that ignores the sequences, where `share` of the labels are +1.

    >>> round(guessing_loss(0.5), 4), guessing_loss(1.0)
    (0.6931, 0.0)
    """
    return sum(-part * math.log(part) for part in (share, 1 - share) if part > 0)


def value_bound(read_outs: Any, radius: float) -> float:
    """|Phi| <= (R/sqrt H) sum_h sum_a ‖u_h,a‖ for read-outs (H, rows, d): A_h X averages tokens of norm <= R.

    >>> import numpy as np
    >>> value_bound(np.ones((4, 2, 1)), 3.0)
    12.0
    """
    lengths = (read_outs**2).sum(axis=-1) ** 0.5
    return float(radius * lengths.sum() / len(read_outs) ** 0.5)


def heads_ratio(num_heads: int, beta2: float, distance: float) -> float:
    """c of sqrt(H) = c beta2 D^2; 0 for D = 0, of which the theorems say nothing.

    >>> heads_ratio(16, 2.0, 1.0), heads_ratio(16, 2.0, 0.0)
    (2.0, 0.0)
    """
    if distance == 0:
        return 0.0
    return num_heads**0.5 / (beta2 * distance**2) if beta2 > 0 else math.inf


def realizability_radius(value_bound: float, margin: float, loss: float, allowance: float) -> float:
    """radius = (B_Phi + s + log(1/eps)) / gamma: theta_0 + radius v has L* <= eps if (beta2/sqrt H) radius^2 <= 2 s.

    >>> realizability_radius(0.5, 0.5, math.exp(-1), 0.5)
    4.0
    """
    return (value_bound + allowance + math.log(1 / loss)) / margin


def expansion_constant(ratio: float) -> float:
    """C <= exp(8.5 / (c - 13/6)) for sqrt(H) = c beta2 D^2; infinite for c <= 13/6.

    >>> round(expansion_constant(26 / 3), 1)
    3.7
    """
    return math.exp(GENERALIZATION_FACTOR / (ratio - 13 / 6)) if ratio > 13 / 6 else math.inf


def generalization_bound(beta1: float, distance: float, num_examples: int, constant: float) -> float:
    """E[test - train] <= 8.5 C beta1^2 D^2 / n.

    >>> generalization_bound(2.0, 1.0, 34, 1.0)
    1.0
    """
    if math.isinf(constant):
        return math.inf
    return GENERALIZATION_FACTOR * constant * beta1**2 * distance**2 / num_examples
