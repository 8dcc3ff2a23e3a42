"""The search for a layer of one family of scores: more heads than it has, from random scores, then fewer, then exact.

| step | what it does |
|---|---|
| wide | rotary scores and many directions: a stochastic descent (`_student`); else Gauss-Newton from small random scores, with half as many heads again as are given, or eight |
| fewer | the heads before whose loss the cost of a drop leaps (`solve/_drop`), refined on |
| kind | where several frequencies are to be tried: those that fit best after the same few steps from there |
| orient | for rotary scores: the slowest pair of a head conjugated, one head after the other |

*Why orient.* Slow frequencies turn little over a short sequence. There the scores show a R(D) b^T with R(D) = exp(D G) on the slow
coordinates, and a change of basis g moves G to g G g^-1. These G form two pieces, for det g > 0 and det g < 0, and no step of a descent
leads from one to the other. A fit in the wrong piece stops short of exact (residual 1e-3 at frequencies 0.01 and 0.001 and 16 tokens).
Conjugating one slow pair of the head leads to the other piece.

Every step is a call of `refine` that follows from the ones before, so an interrupted search keeps their results and goes on from there.
Can fail: starts that all end in local optima.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem, Weights
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.positions import _calibration as own
from attnlearn.recovery.positions._kinds import Family
from attnlearn.recovery.positions._starts import conjugated, random_scores, recast
from attnlearn.recovery.positions._student import Descent
from attnlearn.recovery.wide._prune import likeliest
from attnlearn.scores import Rotary, Rotation, words
from attnlearn.solve._batch import exactness_limit, example_scale, rounding_floor, typical_error, unit_errors
from attnlearn.solve._drop import drop_order
from attnlearn.solve._unknowns import sequences_wanted
from attnlearn.solve.refinement import RefineConfig, refine


class Found(NamedTuple):
    """A fit, its error on the select side, whether that is rounding, and whether no further step is wanted.

    `enough` is said where every select example is fitted to rounding, as certify will ask, or to the target that was given.
    """

    layer: AttentionLayer
    error: float
    exact: bool
    enough: bool


class Search:
    """The examples of one problem, a family of scores, and fits of them; `done` holds the fits of an interrupted search."""

    def __init__(
        self,
        problem: Problem,
        signals: Signals,
        family: Family,
        tools: Tools,
        name: str,
        done: tuple[Weights, ...] = (),
    ) -> None:
        self.problem, self.family, self.tools, self.name = problem, family, tools, name
        self.wanted, self.visible = problem.num_heads, family.visible
        self.dim, self.out = problem.examples.dim, problem.examples.out_dim
        self.heads = calibration.WIDTHS[0] if self.wanted is None else -(-3 * self.wanted // 2)
        turning = isinstance(family.kinds[0], Rotation)
        self.descent = Descent(problem, signals, family, tools) if turning or signals.many else None
        self.start = random_scores(family.kinds[0], self.heads, self.dim, tools.rng(name))
        tokens = problem.examples.tokens
        wanted = sequences_wanted(self.start, self.out, tokens, self.visible)
        self.fit = problem.fit_side(2 * int(np.ceil(wanted))).astype(np.float64)
        self.select, self.scale = problem.select_side(), example_scale(self.fit)
        self.done, self.place = list(done), 0

    def run(self) -> tuple[Found, dict[str, Any]]:
        """The best fit from one random start, and figures for the report."""
        wide = self.wide()
        entry: dict[str, Any] = {
            "kind": words(wide.layer.form),
            "heads": wide.layer.num_heads,
            "width": wide.layer.form.rank,
            "select_error": wide.error,
        }
        if wide.error > own.HOPELESS:
            return wide._replace(exact=False), entry
        best = wide
        for kept in self.remaining(wide.layer, wide.error):
            for fit in self.by_kind(wide.layer.chosen(kept).form):
                found = self.settled(self.closer(fit))
                best = min(best, found, key=lambda fit: fit.error)
                if best.exact or self.tools.out_of_time:
                    return best, entry | _left(best)
        return best, entry | _left(best)

    def wide(self) -> Found:
        """The fit with more heads than are needed."""
        if self.descent is None:
            return self.refined(self.start, own.ROUGH_STEPS, own.ROUGH_INNER)
        descent = self.descent
        return self.made(lambda: descent.run(self.name))

    def by_kind(self, scores: Any) -> list[Found]:
        """Fits from these scores with the positions of each kind, after one round: the best few, the best first.

        The right frequencies in the wrong orientation fit no better than wrong ones, so that is chosen here. Where the first kind is
        hopeless there are too few heads, which no other kind mends. A single kind is oriented later, when its steps no longer help.
        """
        fits: list[Found] = []
        several = len(self.family.kinds) > 1
        for kind in self.family.kinds:
            of_kind = recast(scores, kind) if isinstance(kind, Rotation) else scores
            fit = self.refined(of_kind, own.FINE_STEPS, own.FINE_INNER)
            fits.append(self.oriented(fit) if several and own.RIGHT < fit.error <= own.NEARLY else fit)
            if not own.RIGHT < fits[-1].error <= own.HOPELESS or self.tools.out_of_time:
                break
        return sorted(fits, key=lambda fit: fit.error)[: calibration.FEW]

    def closer(self, best: Found) -> Found:
        """The fit after more rounds of steps, until one hardly helps."""
        while not (best.enough or self.tools.out_of_time):
            found = self.refined(best.layer.form, own.FINE_STEPS, own.FINE_INNER)
            if found.error > own.GAINED * best.error:
                return min(best, found, key=lambda fit: fit.error)
            best = found
        return best

    def settled(self, fit: Found) -> Found:
        """A fit that no longer changes, after slow pairs have found their orientation.

        Far below what a wrong orientation leaves, the outputs are exact to the cosines of the model that made them.
        """
        if fit.exact or not calibration.NOTICEABLE < fit.error <= own.NEARLY:
            return fit
        turned = self.oriented(fit)
        return self.closer(turned) if turned.error < fit.error else fit

    def refined(self, scores: Any, steps: int, inner: int) -> Found:
        """Gauss-Newton from these scores."""

        def stepped() -> AttentionLayer:
            w = np.zeros((scores.heads, self.dim, self.out))
            start = AttentionLayer.from_scores(scores, w, causal=self.visible)
            config = RefineConfig(
                max_steps=steps,
                max_inner=inner,
                tolerance=calibration.DIGIT * (self.problem.target or 0.0),
                average=False,
                seed=self.tools.seed,
                deadline=self.tools.deadline,
            )
            return refine(start, self.fit.x, self.fit.y, mask=self.fit.mask, config=config).layer

        return self.made(stepped)

    def made(self, fit: Callable[[], AttentionLayer]) -> Found:
        """What a fit gives; or what came of it before the search was interrupted."""
        if self.place == len(self.done):
            layer = fit()
            if self.tools.out_of_time:  # not the end of its steps
                return self.judged(layer)
            self.done.append(Weights.of(layer))
            self.tools.checkpoint_inner(self.name, {"done": self.done})
        self.place += 1
        return self.judged(self.done[self.place - 1].layer)

    def judged(self, layer: AttentionLayer) -> Found:
        """A layer with its error on the select side."""
        dtype = self.problem.examples.dtype
        layer = layer.astype(dtype)
        errors = unit_errors(layer, self.select, self.scale)
        error = typical_error(layer, self.select, self.scale)
        self.tools.progress.update(heads=layer.num_heads, select_error=error)
        limit = exactness_limit(rounding_floor(layer, self.select, self.scale), dtype)
        worst = float(errors.max())
        reached = worst <= calibration.TARGET_MARGIN * (self.problem.target or 0.0)
        return Found(layer.astype(np.float64), error, error <= limit or reached, worst <= limit or reached)

    def remaining(self, layer: AttentionLayer, least: float) -> list[np.ndarray]:
        """The likeliest sets of needed heads: those before whose loss the cost of a drop leaps; or as many as are given."""
        order = list(drop_order(layer, self.fit)) if self.descent is None else self.descent.drops(layer)
        return sorted(likeliest(order, least, self.wanted), key=len)

    def oriented(self, best: Found) -> Found:
        """The fit after conjugating the slowest pair of each head whose fit gains by it.

        Heads in the wrong piece have about equal shares of the squared error; half of such a share must go. A tenth is left when the
        last one is right.
        """
        if not isinstance(best.layer.form, Rotary) or best.layer.form.rotation.pairs == 0:
            return best
        share = np.sqrt(1 - 1 / (2 * best.layer.num_heads))
        for _ in range(own.ROUNDS):
            before = best.error
            for head in range(best.layer.num_heads):
                turned = self.refined(conjugated(best.layer.form, head), own.TURN_STEPS, own.FINE_INNER)
                last = turned.exact or turned.error < calibration.DIGIT * best.error
                best = turned if turned.error < share * best.error else best
                if last or self.tools.out_of_time:
                    return best
            if best.error == before:
                break
        return best


def _left(best: Found) -> dict[str, Any]:
    """The fit of the heads that are left, for the report."""
    return {"left": best.layer.num_heads, "left_error": best.error, "kind": words(best.layer.form)}
