"""Moment: the span of the heads, by a streamed randomized SVD with swap deflation (`_deflate`).

With query q_a = (z_a, 1), keys e_ab = z_b - mean_b - K_ab (z_a - mean_a) (the part of key b
that the query does not predict; z_b itself when positions are independent) and residual outputs r_a,

    moment[(u,p),(q,o)] = mean over rows a, keys b != a of  q_a[u] (e_ab[p] e_ab[q] - (1 - K_ab^2) 1[p=q]) r_a[o]

is kappa (D + swap(D) + kurtosis on p=q) to first order in the scores, D = sum_i vec(Theta_i) vec(W_i)^T (docs/mathematics.md, section 3). Only
its products with vectors are formed. The number of heads is at most the number of values above the noise floor.

Outputs are whitened, so a head counts by how far it stands out of the rest, not by its size. NumPy rather than
JAX: the products are tall or tiny and nothing is differentiated; there is nothing to compile.
Cost: O(N k (d d_out + k d)) per vector and product, two products a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn.engine import Tools, storable
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._rows import RowSource
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment._deflate import Deflated, passes
from attnlearn.recovery.moment._floor import measured_floor, noise_floor
from attnlearn.recovery.moment._operator import MomentOperator


@storable
@dataclass(frozen=True)
class Moment:
    """Singular values and vectors of the deflated moment (white coordinates), the floor under them, and the examples behind them."""

    values: Float[np.ndarray, "l"]
    query_basis: Float[np.ndarray, "l r1 r"]
    value_basis: Float[np.ndarray, "l r o"]
    floor: float
    examples: int

    @property
    def visible(self) -> int:
        """Values that stand above the noise floor."""
        return int(np.sum(self.values > calibration.ABOVE_FLOOR * self.floor))


def take_moment(
    problem: Problem, signals: Signals, tools: Tools, *, every: bool = False, most: int | None = None
) -> tuple[Moment, dict[str, Any]]:
    """The moment of few of the fit examples first, then of more, until the heads stand clear of the noise.

    Of all of them if `every`; of no more than `most`, if given.
    """
    fit, given = signals.fit, problem.num_heads
    rng = tools.rng("moment")
    order = rng.permutation(fit)[:most]
    available = len(order)
    num = _few(available)
    svd, excess, history = None, 1.0, []
    while True:
        source = RowSource(problem.examples, signals, np.sort(order[:num]))
        operator = MomentOperator(source, signals, tools.engine)
        computed, last = noise_floor(operator, signals), num == available or tools.out_of_time
        if svd is None or (excess > calibration.GAP and not last):
            excess = measured_floor(operator, rng) / computed
        floor = computed * max(1.0, excess)
        if svd is None:
            vectors = calibration.VECTORS if given is None else given + calibration.SPARE
            svd = Deflated(operator.start(rng, min(vectors, operator.most)), given)
        history += passes(svd, operator, floor, (1 if last else 3) * calibration.ALIKE, rng, tools)
        if last or (svd.clear(floor) and not every):
            break
        del operator  # and with it the rows that it keeps
        num = _more(num, available, svd.weakest / floor)
        if num == available or svd.apart or svd.weakest > calibration.ABOVE_FLOOR * floor:
            svd.trim(max(svd.heads + calibration.SPARE + 1, calibration.VECTORS // 2))
    assert svd.left is not None, "a pass has been made"
    found = Moment(svd.values, svd.left, svd.right, float(floor), num)
    evidence = {
        "singular_values": svd.values.tolist(),
        "floor": float(floor),
        "floor_measured_over_computed": float(excess),
        "examples": num,
        "passes": len(history),
        "history": history,
        "visible": svd.heads,
    }
    return found, evidence


def _few(most: int) -> int:
    """Examples to look at first."""
    first = calibration.LEAST_ROWS // 4
    return first if most >= 2 * first else most


def _more(num: int, most: int, weakest: float) -> int:
    """Examples to look at next: as many as should lift the weakest head seen so far (in floors) clear of the noise.

    >>> _more(1_000, 20_000, 1.6), _more(1_000, 20_000, 1.0), _more(4_000, 6_000, 1.6)
    (2307, 4000, 6000)
    """
    missing = (calibration.CLEAR**2 - 1) / max(weakest**2 - 1, 1e-3)
    wanted = int(num * np.clip(calibration.ABOVE_FLOOR * missing, 2, 4))
    return wanted if 2 * wanted <= most else most
