"""`recover` for scores of a given kind with positions: refinement from random starts, and claim C1 alone.

Every start has random scores of that kind. Gauss-Newton (`solve.refinement`) fits each on the fit side; the select side chooses. The search
ends at the first fit that is exact to rounding there. Heads beyond those needed merge or lose their W, so more may be tried than there are.
Measured (d = 8, 2 heads of width 4, k = 8, causal, base 1e4, 2,000 sequences): one of three starts of 2 heads ends exact.
Can fail: large layers may need more starts than are made; then the best fit is returned for what it is. The theorem behind C2 and C3 is
about scores without positions, so neither is run and no such answer is certified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn._errors import one_line
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome, Solution
from attnlearn._types import LATER, Later
from attnlearn.engine import Tools
from attnlearn.engine._pipeline import Phases
from attnlearn.recovery._conclude import Units, certify_side
from attnlearn.recovery._problem import Problem, rms
from attnlearn.scores import Bilinear, Frequencies, Offsets, Relative, Rotary, Rotation
from attnlearn.solve._batch import Batch, exactness_limit, example_scale, rounding_floor, unit_errors
from attnlearn.solve._calibration import SMALL_ERROR, TRIES
from attnlearn.solve._deadline import passed
from attnlearn.solve.certification._function import function_claim
from attnlearn.solve.refinement import RefineConfig, refine

Kind = Rotation | Offsets


def kind_of(positions: Any) -> Kind | None:
    """The kind of scores that a caller asks for: None for scores without positions.

    >>> kind_of("none") is None
    True
    """
    if positions is None or (isinstance(positions, str) and positions == "none"):
        return None
    found = positions.rotation if isinstance(positions, Frequencies) else positions
    rule = "must be None, 'none', or a Rotation or Offsets of attnlearn.scores"
    if not isinstance(found, (Rotation, Offsets)):
        raise ValueError(f"positions: {rule}, got {one_line(repr(positions), 100)}")
    return found


@dataclass(frozen=True)
class PositionsState:
    """The best fit so far."""

    layer: Later[AttentionLayer] = LATER


class PositionsRoute:
    """Fits from random starts on one problem, and how the best of them is judged."""

    def __init__(self, problem: Problem, units: Units, kind: Kind) -> None:
        self.problem, self.units, self.kind = problem, units, kind
        self.fit, self.select = problem.fit_side(), problem.select_side()
        self.scale = example_scale(self.fit)
        self.state = PositionsState()
        self.phases: Phases = (("fits with positions", self.search),)

    def search(self, _problem: Problem, _state: PositionsState, tools: Tools) -> tuple[PositionsState, dict]:
        """The layer with the smallest select error, and every start with its own."""
        best, least, tried = None, np.inf, []
        for start in range(TRIES):
            found = self._fitted(tools.rng(f"positions {start}"), tools)
            error = rms(unit_errors(found, self.select, self.scale))
            tried.append({"heads": found.num_heads, "select_error": error})
            tools.progress.update(start=start, select_error=error)
            if best is None or error < least:
                best, least = found, error
            limit = exactness_limit(rounding_floor(best, self.select, self.scale), self.select.x.dtype)
            if least <= limit or passed(tools.deadline):
                break
        assert best is not None, "there is at least one start"
        return PositionsState(best), {"tried": tried}

    search.never_saved = True  # type: ignore[attr-defined]

    def _fitted(self, rng: np.random.Generator, tools: Tools) -> AttentionLayer:
        """Gauss-Newton from one random start."""
        fit = self.fit
        scores = _random(self.kind, self.problem.num_heads or 1, fit.x.shape[2], rng)
        w = np.zeros((scores.heads, fit.x.shape[2], fit.y.shape[2]))
        start = AttentionLayer.from_scores(scores, w, causal=self.problem.causal or False).astype(fit.x.dtype)
        config = RefineConfig(deadline=tools.deadline)
        return refine(start, fit.x, fit.y, mask=fit.mask, config=config).layer.canonical()

    def layer(self, state: PositionsState) -> AttentionLayer | None:
        """The best fit."""
        return state.layer

    def conclude(self, state: PositionsState) -> Solution:
        """Claim C1 on the certify side; C2 and C3 are not run."""
        layer, target = state.layer, self.problem.target
        side = certify_side(self.problem, self.units.members)
        made = _certificate(layer, side, self.scale, target, self.units)
        met = target is not None and made.claim("C1").established
        stats = {
            "fit_error": rms(unit_errors(layer, self.fit, self.scale)),
            "select_error": rms(unit_errors(layer, self.select, self.scale)),
        }
        return Solution(layer, Outcome.ON_TARGET if met else Outcome.NOT_ESTABLISHED, made, stats=stats)


def _random(kind: Kind, heads: int, dim: int, rng: np.random.Generator) -> Any:
    """Random scores whose standard deviation on white tokens is about one."""
    if isinstance(kind, Rotation):
        a, b = rng.standard_normal((2, heads, dim, kind.width)) / np.sqrt(dim * np.sqrt(kind.width))
        return Rotary.of_factors(a, b, kind)
    theta = rng.standard_normal((heads, dim, dim)) / dim
    return Relative(Bilinear.whole(theta, np.zeros((heads, dim))), np.zeros((heads, kind.numbers)), kind)


def _certificate(
    layer: AttentionLayer, held: Batch, scale: float, target: float | None, units: Units
) -> Certificate:
    """C1, and that C2 and C3 are not run."""
    limit = SMALL_ERROR if target is None else target
    c1, checks = function_claim(
        layer.astype(held.x.dtype), held, scale, limit=limit, unit=units.name, where=units.where
    )
    others = (
        Claim("C2", "the number of heads is not claimed for scores with positions", established=False),
        Claim("C3", "Theta(offset) is not bounded for scores with positions", established=False),
    )
    unrun = [
        Check("C2.exact", Status.NOT_RUN, text="fit exact to rounding: no theorem for scores with positions"),
        Check("C3.bound", Status.NOT_RUN, text="bound on the error of every Theta(offset)"),
    ]
    return Certificate((c1, *others), (*checks, *unrun))
