"""The noise floor of the moment: computed, measured, and what it says about the number of examples.

floor = sqrt(h / pairs) (sqrt(tr Sigma_r) + sqrt(d ‖Sigma_r‖)), h = d + 1 + mean kurtosis
(d - 1 for ±1 tokens), pairs the number of (query, key) pairs. Correlated positions carry less than `pairs`
independent ones, and rows of one sequence are not independent: the measured floor sees that. It is the largest
singular value after the outputs of each sequence got a random sign, which keeps the noise and kills the mean.
"""

from __future__ import annotations

import numpy as np

from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment._operator import MomentOperator, orthonormal


def noise_floor(operator: MomentOperator, signals: Signals) -> float:
    """The computed floor for the sequences of `operator`."""
    whitening = operator.source.whitening
    covariance = whitening @ signals.residual_covariance @ whitening
    d = operator.source.dim
    spread = d + 1 + float(signals.kurtosis.mean())
    spread *= _dependence(signals)
    edges = np.sqrt(np.trace(covariance)) + np.sqrt(d * np.linalg.eigvalsh(covariance)[-1])
    return float(np.sqrt(spread / operator.pairs) * edges)


def _dependence(signals: Signals) -> float:
    """How many pairs of one query count as one: mean over queries of sum (K'_bb')^2 / number of keys."""
    correlation = signals.position_correlation
    k = len(correlation)
    if np.array_equal(correlation, np.eye(k)):
        return 1.0
    between = (correlation + correlation.T) / 2
    ratios = []
    for a in range(k):
        keys = np.arange(k) != a
        if signals.causal:
            keys &= np.arange(k) < a
        if keys.any():
            rest = between[np.ix_(keys, keys)] - np.outer(between[a, keys], between[a, keys])
            ratios.append(np.sum(rest**2) / keys.sum())
    return float(np.mean(ratios))


def measured_floor(operator: MomentOperator, rng: np.random.Generator) -> float:
    """The largest singular value with random signs per sequence, by a few passes from a random start."""
    operator = operator.flipped(rng.choice(np.array([-1.0, 1.0], np.float32), operator.source.num))
    right = operator.start(rng, min(calibration.SPARE, operator.most))
    value = 0.0
    for _ in range(calibration.FEW):
        left = orthonormal(operator.times(right))
        product = operator.transposed_times(left)
        value = float(np.linalg.norm(product.reshape(len(product), -1), 2))
        right = orthonormal(product)
    return value


def examples_needed(problem: Problem, signals: Signals, values: np.ndarray, floor: float) -> int:
    """Sequences at which the count of the heads would be worth trying, when none stands out now.

    The residual variance bounds what m equal heads can have: to first order tr Sigma_r = kappa sum ‖Theta_i‖^2 ‖W_i‖^2,
    hence s^2 <= kappa tr Sigma_r / m. Long sequences leave far less; there the largest value says more, as far as it
    stands out of the last, which is noise.
    """
    heads = problem.num_heads or max(calibration.WIDTHS[0], int(np.sum(values > floor)))
    covariance = signals.residual_covariance
    whitened = np.trace(covariance @ np.linalg.inv(_ridged(covariance)))
    k = problem.examples.tokens
    kappa = (1 / k) * (1 - 1 / k)
    most = np.sqrt(kappa * whitened / heads)
    stands_out = np.sqrt(values[0] ** 2 - values[-1] ** 2)
    s = min(most, max(stands_out, (calibration.ABOVE_FLOOR - 1) * floor))
    more = max(calibration.MORE_LEAST, (calibration.NEEDED_AT * floor / s) ** 2)
    return int(np.ceil(more * problem.examples.num))


def _ridged(covariance: np.ndarray) -> np.ndarray:
    o = len(covariance)
    return covariance + calibration.ROUGH * np.trace(covariance) / o * np.eye(o)
