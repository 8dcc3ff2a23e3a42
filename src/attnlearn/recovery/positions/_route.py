"""`recover` for scores with positions: a search over the kinds that were asked for, and a certificate of the best fit.

The first fit that is exact on the select side ends the search; otherwise the fit with the smallest select error is the answer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from attnlearn._certificate import Certificate, Status
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome, Solution
from attnlearn._types import LATER, Later
from attnlearn.engine import Tools
from attnlearn.engine._pipeline import Phases
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._conclude import Units, certify_side
from attnlearn.recovery._problem import Problem, memorised
from attnlearn.recovery._statistics import looks_causal, token_support
from attnlearn.recovery.positions._kinds import Asked
from attnlearn.recovery.positions._search import Search
from attnlearn.scores import as_visible, words
from attnlearn.solve._batch import exactness_limit, example_scale, rounding_floor, typical_error
from attnlearn.solve._unknowns import sequences_wanted
from attnlearn.solve.certification import certify


@dataclass(frozen=True)
class PositionsState:
    """The best fit so far."""

    layer: Later[AttentionLayer] = LATER


class PositionsRoute:
    """Searches on one problem, and how the best fit is judged."""

    def __init__(self, problem: Problem, units: Units, asked: Asked) -> None:
        examples = problem.examples
        if problem.causal is None:
            problem = dataclasses.replace(problem, causal=looks_causal(examples, problem.split.fit))
        self.problem, self.units = problem, units
        self.kinds = asked.kinds(examples.dim, examples.tokens, problem.num_heads)
        self.state = PositionsState()
        self.phases: Phases = (("fits with positions", self.search),)

    def search(self, problem: Problem, _state: PositionsState, tools: Tools) -> tuple[PositionsState, dict]:
        """The best fit of any kind, and every start with its select error."""
        best, tried = Search(self.problem, self.kinds, as_visible(self.problem.causal), tools).run()
        layer = best.layer.canonical().astype(problem.examples.dtype)
        return PositionsState(layer), {"tried": tried, "kind": words(layer.form)}

    search.never_saved = True  # type: ignore[attr-defined]

    def layer(self, state: PositionsState) -> AttentionLayer | None:
        """The best fit."""
        return state.layer

    def conclude(self, state: PositionsState) -> Solution:
        """The certificate of the best fit and the outcome that follows from it."""
        problem, layer = self.problem, state.layer
        tokens = problem.examples.tokens
        fit = problem.fit_side(
            4 * int(np.ceil(sequences_wanted(layer.form, layer.out_dim, tokens, layer.visible)))
        )
        scale = example_scale(fit)
        white = token_support(problem.examples, problem.split.fit)
        made = certify(
            layer,
            certify_side(problem, self.units.members),
            fit,
            scale=scale,
            support=None if white.directions == layer.dim else white.support,
            target=problem.target,
            unit=self.units.name,
            where=self.units.where,
        )
        select = problem.select_side()
        fitted, selected = (typical_error(layer, side, scale) for side in (fit, select))
        floor = rounding_floor(layer, select, scale)
        stats = {"fit_error": fitted, "select_error": selected, "rounding_floor": floor}
        exact = exactness_limit(floor, select.x.dtype)
        ended = _outcome(made, problem.target is not None, fitted, selected, exact)
        return Solution(layer, ended, made, stats=stats)


def _outcome(made: Certificate, targeted: bool, fitted: float, selected: float, exact: float) -> Outcome:
    """What a certificate and the errors on both sides say."""
    if made.certified:
        return Outcome.RECOVERED
    if targeted and made.claim("C1").established:
        return Outcome.ON_TARGET
    if selected <= exact:
        failed = {check.code for check in made.checks if check.status is Status.FAILS}
        close = "C2.rivals" in failed or "C2.apart" in failed
        return Outcome.HEADS_INDISTINGUISHABLE if close else Outcome.NOT_ESTABLISHED
    if memorised(fitted, selected):
        return Outcome.TOO_FEW_EXAMPLES
    return Outcome.NOT_ATTENTION if selected > calibration.MISFIT else Outcome.NOT_ESTABLISHED
