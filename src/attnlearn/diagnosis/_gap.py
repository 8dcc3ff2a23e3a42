"""The spectral gap: how far the weakest head stands above the noise floor of the moment.

Theory, section 3. With a layer the expected singular values are computed, not sampled: to first order in the
derivative of the attention the moment is D + swap(D),

    D = sum_i vec(B_i [Theta_i; c_i]) vec(W_i Omega)^T,    B_i = mean over rows a, keys b != a of alpha (1 - alpha) q_a q_a^T

in white coordinates, q_a = (z_a, 1), Omega the output whitening; B_i is where saturated and weak attention both lose.
With data alone the moment itself is measured (`moment`, `count`). The floor is that of the spectral route either way and
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
from attnlearn.engine import Engine, Progress, Stop, Tools
from attnlearn.recovery.spectral._calibration import ABOVE_FLOOR
from attnlearn.recovery.spectral._count import count
from attnlearn.recovery.spectral._floor import measured_floor, noise_floor
from attnlearn.recovery.spectral._moment import moment
from attnlearn.recovery.spectral._operator import MomentOperator
from attnlearn.recovery.spectral._prepare import prepare
from attnlearn.recovery.spectral._rows import RowSource
from attnlearn.recovery.spectral._state import Problem, State
from attnlearn.solve._chunks import Whitening
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
    problem, state, evidence, stopped = _prepared(x, y, layer.causal, seed)
    share = float(evidence.get("nonlinear_share", 0.0))
    if stopped is not None or state.residual_covariance is None:
        return Gap(np.zeros(layer.num_heads), 0.0, len(problem.split.fit), share, 0, stopped)
    operator = MomentOperator(RowSource(problem, state, problem.split.fit), state)
    values = expected_values(layer, x[: calibration.PATTERN_SEQUENCES], state, operator.source.whitening)
    computed = noise_floor(operator, state)
    floor = max(computed, measured_floor(operator, _tools(seed).rng("floor")))
    return Gap(values, floor, len(problem.split.fit), share, layer.num_heads, None)


def expected_values(
    layer: AttentionLayer, x: np.ndarray, state: State, whitening: Float[np.ndarray, "o o"]
) -> Float[np.ndarray, "m"]:
    """Singular values of D, largest first."""
    white = Whitening(np.asarray(state.mean), np.asarray(state.basis), np.asarray(state.inverse))
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


def data_gap(x: np.ndarray, y: np.ndarray, mask: np.ndarray | None, seed: int) -> tuple[Gap, dict, State]:
    """The gap as the spectral route sees it in the data: values, floor, and the number of heads it would count."""
    problem, state, evidence, stopped = _prepared(x, y, None, seed, mask)
    share = float(evidence.get("nonlinear_share", 0.0))
    fitted = len(problem.split.fit)
    if stopped is not None:
        return Gap(np.zeros(1), 0.0, fitted, share, 0, stopped), evidence, state
    tools = _tools(seed)
    try:
        state, _ = moment(problem, state, tools, every=True)
        state, _ = count(problem, state, tools)
    except Stop as stop:
        stopped, state = stop.outcome_name, stop.state or state
    values, floor = state.singular_values, state.floor
    if values is None or floor is None:
        return Gap(np.zeros(1), 0.0, fitted, share, 0, stopped), evidence, state
    heads = int(np.sum(values > ABOVE_FLOOR * floor)) if state.num_heads is None else state.num_heads
    return Gap(values, float(floor), fitted, share, heads, stopped), evidence, state


def _prepared(
    x: np.ndarray, y: np.ndarray, causal: bool | None, seed: int, mask: np.ndarray | None = None
) -> tuple[Problem, State, dict, str | None]:
    """The first phase of the spectral route, or why it stopped."""
    examples = as_examples(x, y, mask)
    problem = Problem(examples, Split.make(examples.num, seed=seed), causal)
    try:
        state, evidence = prepare(problem, State(), _tools(seed))
    except Stop as stop:
        return problem, stop.state or State(), stop.evidence, stop.outcome_name
    return problem, state, evidence, None


def _tools(seed: int) -> Tools:
    return Tools(Engine.parse(None), Progress.make(False), seed)
