"""Count: how many heads, decided by the floor and judged on select examples.

At most as many heads as singular values above ABOVE_FLOOR times the noise floor. That many are
unmixed on fit examples and judged on *select* examples. The unmixing begins where the second order puts the heads
(`_second_order`), and at random where its optimum lies elsewhere. A value may stand above the floor without being a head: the
bias of the first-order model does when there are many examples, and the swap of a head of effective rank one is as
large as the head. So the least head is taken away, the others moved to their new optimum inside the same span, and
as long as that does not raise the residual on select examples the smaller number is kept.

The count is not established (`crowded`) when the values run into the floor without a gap: then a head may be hidden below.
Cost: a few unmixings of a few hundred sequences; every candidate starts from its neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment._moment import Moment
from attnlearn.recovery.moment._second_order import second_order_start
from attnlearn.recovery.moment._span import Unmixed, best_start, near_estimate, span_models
from attnlearn.recovery.moment._varpro import Fit, SpanModel


@dataclass(frozen=True)
class Counted:
    """The heads' coordinates on the span, whether two starts agreed on them, and what they leave of the select side.

    `crowded`: the number is not established. `clear_view`: examples with which the weakest head would stand out clearly.
    """

    coordinates: Float[np.ndarray, "m l"]
    agreed: bool
    unexplained: float
    crowded: bool
    clear_view: int
    evidence: dict[str, Any]

    @property
    def examples_needed(self) -> int:
        """Examples with which the count should be established."""
        return int(np.ceil((calibration.NEEDED_AT / calibration.ABOVE_FLOOR) ** 2 * self.clear_view))


def count_heads(
    problem: Problem, signals: Signals, moment: Moment, tools: Tools, given: int | None
) -> Counted:
    """The number of heads (or `given`), with the residuals of its neighbours as evidence."""
    values, floor, visible = moment.values, moment.floor, moment.visible
    most = max(1, min(visible if given is None else given, len(values)))
    rng = tools.rng("count")
    bases = moment.query_basis[:most], moment.value_basis[:most]
    model, other = span_models(problem, signals, *bases, rng)
    start, first = near_estimate(model, second_order_start(problem, signals, moment, most, rng))
    if start is None:
        start = best_start(model, most, rng, first, engine=tools.engine)
    a, residuals = _judged(model, other, start, prune=given is None)
    heads = len(a)
    weakest, clear_view = float(values[heads - 1]), _clear(problem, signals, moment, heads)
    evidence = {
        "heads": heads,
        "visible": visible,
        "given": given,
        "weakest_over_floor": weakest / floor,
        "next_over_floor": float(values[visible] / floor) if visible < len(values) else None,
        "starts": len(start.shares),
        "examples_for_clear_view": clear_view,
        "select_residuals": {str(number): value for number, value in sorted(residuals.items())},
    }
    crowded = given is None and _crowded(values, floor, heads, visible)
    return Counted(a, start.agreed, residuals[heads], crowded, clear_view, evidence)


def _crowded(values: np.ndarray, floor: float, heads: int, visible: int) -> bool:
    """Whether the values run into the floor without a gap, or heads little above it are kept and others are not."""
    if heads >= len(values) or values[heads - 1] > calibration.CLEAR * floor:
        return False
    return bool(heads < visible or values[heads - 1] < calibration.GAP * values[heads])


def _clear(problem: Problem, signals: Signals, moment: Moment, heads: int) -> int:
    """Examples, all sides of the split included, with which the weakest head would stand out clearly."""
    weakest, floor = moment.values[heads - 1], moment.floor
    signal = np.sqrt(max(weakest**2 - floor**2, (calibration.GAP - 1) * floor**2))
    share = moment.examples / len(signals.fit)
    return int(np.ceil(problem.examples.num * share * (calibration.ABOVE_FLOOR * floor / signal) ** 2))


def _judged(
    model: SpanModel, other: SpanModel, start: Unmixed, *, prune: bool
) -> tuple[Float[np.ndarray, "m l"], dict[int, float]]:
    """Coordinates of the heads that are needed, and the residual on select examples by number of heads."""
    a, fit = start.coordinates, start.fit
    residuals = {len(a): other.judge(a, fit.mixing)}
    while len(a) > 1:
        fewer, refitted = _one_fewer(model, a, fit)
        residuals[len(fewer)] = other.judge(fewer, refitted.mixing)
        if not prune or residuals[len(fewer)] > calibration.GAP * residuals[len(a)]:
            break
        a, fit = fewer, refitted
    return a, residuals


def _one_fewer(model: SpanModel, a: np.ndarray, fit: Fit) -> tuple[np.ndarray, Fit]:
    """The optimum after the least head is taken away."""
    size = np.linalg.norm(fit.mixing, axis=1) * np.linalg.norm(a * model.spread, axis=1)
    return model.descend(np.delete(a, np.argmin(size), axis=0))[:2]
