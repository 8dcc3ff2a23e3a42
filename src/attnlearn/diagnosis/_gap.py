"""The spectral gap: how far the weakest head stands above the noise floor of the moment.

With a layer the expected singular values are computed, not sampled: to first order in the
derivative of the attention the moment is D + swap(D),

    D = sum_i vec(B_i [Theta_i; c_i]) vec(W_i Omega)^T,    B_i = mean over rows a, keys b != a of alpha (1 - alpha) q_a q_a^T

in white coordinates, q_a = (z_a, 1), Omega the output whitening; B_i is where saturated and weak attention both lose.
With data alone the moment itself is measured. The floor is that of `recover` either way and
falls with the square root of the number of examples.

Cost: one pass over the tokens given. What can fail: beyond first order (saturated heads) the values are off; calibrated
in the benchmark `conditions`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.diagnosis import _calibration as calibration
from attnlearn.engine import Engine, Progress, Tools
from attnlearn.recovery._problem import Need, Problem
from attnlearn.recovery._rows import RowSource
from attnlearn.recovery._signals import Signals, measure
from attnlearn.recovery.moment import count_heads, take_moment
from attnlearn.recovery.moment._floor import measured_floor, noise_floor
from attnlearn.recovery.moment._operator import MomentOperator
from attnlearn.solve._split import Split


@dataclass(frozen=True)
class Gap:
    """Singular values of the heads and the floor under them, at `fitted` examples on the fit side.

    >>> Gap(np.array([2.0, 1.0]), 0.5, 1000, 0.4, 2, None).ratio
    2.0
    """

    values: Float[np.ndarray, "l"]
    floor: float
    fitted: int
    share: float
    heads: int
    stopped: str | None

    @property
    def ratio(self) -> float:
        """The weakest head over the floor; 0 when no head is seen."""
        return self.ratio_without(0)

    def ratio_without(self, hidden: int) -> float:
        """The weakest head over the floor when so many weaker ones need not be seen; one always must be."""
        last = max(self.heads - hidden, 1) - 1
        return float(self.values[last] / self.floor) if self.heads and self.floor > 0 else 0.0


def layer_gap(layer: AttentionLayer, x: np.ndarray, y: np.ndarray, seed: int) -> Gap:
    """The gap that `layer` has on the tokens `x`, to first order."""
    problem = problem_of(x, y, None, layer.causal, seed)
    signals = measure(problem, tools_of(seed))
    fitted = len(problem.split.fit)
    if isinstance(signals, Need):
        return _nothing(signals, layer.num_heads, fitted)
    operator = MomentOperator(RowSource(problem.examples, signals, signals.fit), signals)
    values = expected_values(layer, x[: calibration.PATTERN_SEQUENCES], signals, operator.source.whitening)
    computed = noise_floor(operator, signals)
    floor = max(computed, measured_floor(operator, tools_of(seed).rng("floor")))
    return Gap(values, floor, fitted, signals.nonlinear_share, layer.num_heads, None)


def _nothing(need: Need, values: int, fitted: int) -> Gap:
    """The gap where the signals themselves say that nothing can be seen."""
    share = float(need.evidence.get("nonlinear_share", 0.0))
    return Gap(np.zeros(values), 0.0, fitted, share, 0, need.outcome.name)


def expected_values(
    layer: AttentionLayer, x: np.ndarray, signals: Signals, whitening: Float[np.ndarray, "o o"]
) -> Float[np.ndarray, "m"]:
    """Singular values of D, largest first."""
    white = signals.white
    inside = white.enter(layer.parameters)
    z = white.tokens(x.astype(np.float64))
    queries = np.concatenate([z, np.ones((*z.shape[:2], 1))], axis=2)
    alpha = layer.patterns(x).astype(np.float64)
    k = x.shape[1]
    counted = ~np.eye(k, dtype=bool) & (np.tril(np.ones((k, k), bool)) if layer.causal else True)
    spread = (alpha * (1 - alpha) * counted).sum(axis=3) / counted.sum() / len(x)
    between = np.einsum("nma,nau,nav->muv", spread, queries, queries, optimize=True)
    stacked = np.concatenate([inside.theta, inside.query_bias[:, None, :]], axis=1)
    left = (between @ stacked).reshape(layer.num_heads, -1)
    right = (inside.w @ whitening).reshape(layer.num_heads, -1)
    first, second = (np.linalg.qr(side.T)[1] for side in (left, right))
    return np.linalg.svd(first @ second.T, compute_uv=False)


def data_gap(problem: Problem, signals: Signals | Need, seed: int) -> Gap:
    """The gap as the moment of all data shows it: values, floor, and the number of heads that it would count."""
    fitted = len(problem.split.fit)
    if isinstance(signals, Need):
        return _nothing(signals, 1, fitted)
    tools, share = tools_of(seed), signals.nonlinear_share
    moment, _ = take_moment(problem, signals, tools, every=True)
    heads, stopped = moment.visible, None
    if not heads:
        stopped = "TOO_FEW_EXAMPLES"
    elif signals.modelled:
        counted = count_heads(problem, signals, moment, tools, None)
        heads, stopped = len(counted.coordinates), "TOO_FEW_EXAMPLES" if counted.crowded else None
    return Gap(moment.values, moment.floor, fitted, share, heads, stopped)


def problem_of(
    x: np.ndarray, y: np.ndarray, mask: np.ndarray | None, causal: bool | None, seed: int
) -> Problem:
    """The problem that `recover` would see."""
    examples = as_examples(x, y, mask)
    return Problem(examples, Split.make(examples.num, seed=seed), causal)


def tools_of(seed: int) -> Tools:
    """Quiet tools, in this process."""
    return Tools(Engine.parse(None), Progress.make(False), seed)
