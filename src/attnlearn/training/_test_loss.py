"""The test-loss corollary: examples, steps and heads after which the expected loss on new examples is at most eps.

With L* <= eps/8 at distance D (realizability), K = 5 D^2 / (8 eta L*) steps and eta <= 1/rho, the last training loss is at most
the mean, which is at most 4 L* = eps/2; with sqrt(H) = c beta2 D^2, c = 26/3, the expected test loss exceeds it by at most 8.5 C
beta1^2 D^2 / n, C = exp(8.5/(c - 13/6)), which n = 17 C beta1^2 D^2 / eps makes eps/2 (docs/guarantees.md, section 5). Cost: none.
What can fail: nothing, but the numbers are astronomical, and they assume that larger samples have the same margin.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnlearn.training import _bounds
from attnlearn.training._calibration import CURVATURE_ALLOWANCE, HEADS_RATIO, TRAIN_SHARE
from attnlearn.training._problem import Problem

ASSUMES = (
    "samples of that size have at least this margin gamma and this B_Phi",
    "R bounds every token of the distribution",
    "start and step do not depend on the sample",
)


@dataclass(frozen=True)
class TestTarget:
    """What an expected loss on new examples takes: examples, steps, heads, and the distance and step behind them.

    >>> TestTarget(0.1, 0.0125, 2.0, 1e6, 0.1, 250.0, 1e5).assumes[1]
    'R bounds every token of the distribution'
    """

    __test__ = False  # for pytest: no test, whatever its name

    loss: float
    train_star: float
    distance: float
    heads: float
    step: float
    steps: float
    examples: float
    assumes: tuple[str, ...] = ASSUMES


def test_target(
    problem: Problem, margin: float, value: float, loss_start: float, norm: float, loss: float
) -> TestTarget:
    """The corollary at the margin, the |Phi| and the read-out norm of a start whose loss is `loss_start`."""
    star = TRAIN_SHARE * loss
    distance = _bounds.realizability_radius(value, margin, star, CURVATURE_ALLOWANCE)
    reach = _bounds.norm_in_ball(norm + distance, distance)
    beta1, beta2 = problem.constants(reach)
    heads = max(1.0, (HEADS_RATIO * beta2 * distance**2) ** 2)
    step = min(1 / (beta1**2 / 4 + beta2 / heads**0.5), distance**2 / loss_start)
    steps = 5 * distance**2 / (8 * step * star)
    unit = _bounds.generalization_bound(beta1, distance, 1, _bounds.expansion_constant(HEADS_RATIO))
    return TestTarget(loss, star, distance, heads, step, steps, 2 * unit / loss)


test_target.__test__ = False  # type: ignore[attr-defined]
