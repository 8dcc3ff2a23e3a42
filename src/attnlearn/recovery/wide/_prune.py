"""From a wide fit to the heads that it needs: refine, drop, refine, judged on the select side.

Every head of the layer finds one nearby in the wide fit, and the others fall silent or double one. The cost of dropping a head
(`solve/_drop`) then shows where the heads begin: of 8 to 16 heads on words of a list (two to nine in truth, d = 19 to 31) the
needless ones cost 1e-4 to 0.05 of the outputs, and the next one 0.2 to 0.6.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem, memorised
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.wide._condense import condensed, mixed_heads
from attnlearn.solve._batch import example_scale, typical_error
from attnlearn.solve._drop import drop_order
from attnlearn.solve.refinement import RefineConfig, refine


class WideFit(NamedTuple):
    """A refined layer, its rank, its errors on both sides, and the residual after every step."""

    layer: AttentionLayer
    rank: int | None
    select_error: float
    residual: float
    steps: int
    residuals: tuple[float, ...] = ()

    @property
    def memorised(self) -> bool:
        """Whether the fit side was memorised."""
        return memorised(self.residual, self.select_error)


class Pruner:
    """The examples of the wide search, and what they say of a start."""

    def __init__(self, problem: Problem, signals: Signals, tools: Tools) -> None:
        self.problem, self.signals = problem, signals
        fit = problem.fit_side(calibration.LEAST_ROWS)
        self.fit = dataclasses.replace(fit, x=fit.x.astype(np.float64), y=fit.y.astype(np.float64))
        self.select = problem.select_side()
        self.scale, self.dtype, self.tools = example_scale(fit), problem.examples.dtype, tools
        self.costs: dict[int, float] = {}
        """Relative error by the number of heads kept, of the last wide fit; for the report alone."""

    def refined(
        self,
        start: AttentionLayer,
        rank: int | None,
        tolerance: float,
        steps: int = 3 * calibration.SHORT_STEPS,
    ) -> WideFit:
        """The optimum near a start, as far as the search wants it."""
        config = RefineConfig(
            max_steps=steps,
            max_inner=calibration.MANY_PRODUCTS // 2,
            max_examples=calibration.LEAST_ROWS // 2,
            tolerance=tolerance,
            average=False,
            seed=self.tools.seed,
            deadline=self.tools.deadline,
        )
        heads = start.num_heads
        found = refine(
            start,
            self.fit.x,
            self.fit.y,
            mask=self.fit.mask,
            rank=rank,
            config=config,
            on_step=lambda step: self.tools.progress.update(heads=heads, residual=step["residual"]),
        )
        residuals = tuple(float(step["residual"]) for step in found.steps)
        error = self.select_error(found.layer)
        return WideFit(found.layer, found.rank, error, found.residual, len(found.steps), residuals)

    def select_error(self, layer: AttentionLayer) -> float:
        """The error of a layer on the select side."""
        return typical_error(layer.astype(self.dtype), self.select, self.scale)

    def fit_error(self, layer: AttentionLayer) -> float:
        """The error of a layer on as many fit examples as the select side has."""
        side = self.fit.first(self.select.num)
        return typical_error(layer.astype(self.dtype), side.astype(self.dtype), self.scale)

    def without_needless(self, wide: WideFit) -> WideFit | None:
        """The fit without its needless heads, or with as many as are given; None if that explains too little.

        A fit with fewer heads is refined further than a wide one, so it shows better of how many heads its own are mixtures.
        """
        self.costs = {}
        if wide.select_error > self.signals.misfit or wide.memorised:
            return None
        best, found = None, self._explaining(wide, wide.layer.num_heads, self.signals.found)
        while found is not None:
            best, fewer = found, found.layer.num_heads - 1
            found = None if self.settled(best) else self._explaining(best, fewer, calibration.NOTICEABLE)
        return best

    def settled(self, found: WideFit) -> bool:
        """Whether the heads of a fit are no mixtures of fewer."""
        return mixed_heads(self.problem, self.signals, found.layer) is None

    def _explaining(self, wide: WideFit, most: int, enough: float) -> WideFit | None:
        """The first start of `most` heads that explains the select side about as well as `wide`, or to `enough`."""
        enough = max(enough, calibration.CLEAR * wide.select_error)
        for start, rank in self.starts(wide):
            if start.num_heads > most:
                continue
            found = self.refined(start, rank, calibration.NOTICEABLE)
            if found.select_error <= enough and not found.memorised:
                return found
        return None

    def starts(self, wide: WideFit) -> Iterator[tuple[AttentionLayer, int | None]]:
        """Starts, the likeliest first: as many of the heads as all are mixtures of, those heads themselves, other sets of heads."""
        layer, sets = wide.layer, self.remaining(wide, self.problem.num_heads)
        mixed = mixed_heads(self.problem, self.signals, layer)
        sure = mixed is None or len(sets[0]) == mixed.heads
        if sure and self.signals.nonlinear_share >= calibration.ROUGH:
            yield layer.chosen(sets.pop(0)), wide.rank
        if mixed is not None:
            rng = self.tools.rng(f"condense {layer.num_heads}")
            start, rank = condensed(self.problem, self.signals, layer, mixed, rng)
            yield start, rank
            if rank is not None:
                yield start, None
        for kept in sets:
            yield layer.chosen(kept), wide.rank

    def remaining(self, wide: WideFit, heads: int | None) -> list[np.ndarray]:
        """The likeliest sets of needed heads: those before whose loss the cost of a drop leaps."""
        order = list(drop_order(wide.layer, self.fit))
        self.costs = self.costs or {len(kept): float(cost) for kept, cost in order}
        return likeliest(order, wide.select_error, heads)


def likeliest(order: list[tuple[np.ndarray, float]], least: float, heads: int | None) -> list[np.ndarray]:
    """Of all heads and those that remain after each drop, the sets before whose loss the cost leaps; or the one of a given number.

    `least` is the error of the layer that has all of them.
    """
    sets = [np.arange(len(order) + 1), *(kept for kept, _ in order)]
    if heads is not None:
        return [kept for kept in sets if len(kept) == heads]
    costs = np.array([least, *(cost for _, cost in order), 1.0])
    costs = np.maximum.accumulate(np.maximum(costs, least))
    leaps = np.argsort(costs[:-1] / costs[1:], kind="stable")
    return [sets[place] for place in leaps[: calibration.FEW]]
