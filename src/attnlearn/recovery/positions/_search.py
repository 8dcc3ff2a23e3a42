"""The search for a layer of given kinds of scores: more heads than it has, from random scores, then fewer, then exact.

| step | what it does |
|---|---|
| wide | Gauss-Newton from small random scores, with half as many heads again as are given, or eight |
| fewer | the heads before whose loss the cost of a drop leaps (`solve/_drop`), refined on |
| kind | where several frequencies are to be tried: those that fit best after the same few steps from there |
| orient | for rotary scores: the slowest pair of a head conjugated, one head after the other |

*Why orient.* Slow frequencies turn little over a short sequence. There the scores show a R(D) b^T with R(D) = exp(D G) on the slow
coordinates, and a change of basis g moves G to g G g^-1. These G form two pieces, for det g > 0 and det g < 0, and no step of a descent
leads from one to the other. A fit in the wrong piece stops short of exact (residual 1e-3 at frequencies 0.01 and 0.001 and 16 tokens).
Conjugating one slow pair of the head leads to the other piece.
Can fail: starts that all end in local optima.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery.positions import _calibration as own
from attnlearn.recovery.positions._kinds import Kind
from attnlearn.recovery.wide._prune import likeliest
from attnlearn.scores import Bilinear, Relative, Rotary, Rotation, Visible, words
from attnlearn.solve._batch import exactness_limit, example_scale, rounding_floor, typical_error, unit_errors
from attnlearn.solve._calibration import TRIES
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
    """The examples of one problem, kinds of scores of one shape and a mask, and fits of them."""

    def __init__(self, problem: Problem, kinds: list[Kind], visible: Visible, tools: Tools) -> None:
        self.problem, self.kinds, self.visible, self.tools = problem, kinds, visible, tools
        self.wanted = problem.num_heads
        self.dim, self.out = problem.examples.dim, problem.examples.out_dim
        self.heads = calibration.WIDTHS[0] if self.wanted is None else -(-3 * self.wanted // 2)
        likely = random_scores(kinds[0], self.heads, self.dim, tools.rng("size"))
        tokens = problem.examples.tokens
        self.fit = problem.fit_side(2 * int(np.ceil(sequences_wanted(likely, self.out, tokens, visible))))
        self.fit = self.fit.astype(np.float64)
        self.select, self.scale = problem.select_side(), example_scale(self.fit)

    def run(self) -> tuple[Found, list[dict[str, Any]]]:
        """The first exact fit, or the one with the smallest select error; and every start for the report."""
        best: Found | None = None
        tried: list[dict[str, Any]] = []
        for start in range(TRIES):
            for found, entry in self._from(start):
                tried.append(entry)
                best = found if best is None or found.error < best.error else best
                if best.exact or self.tools.out_of_time:
                    return best, tried
        assert best is not None, "there is at least one start"
        return best, tried

    def _from(self, start: int) -> Iterator[tuple[Found, dict[str, Any]]]:
        rng = self.tools.rng(f"positions {start}")
        scores = random_scores(self.kinds[0], self.heads, self.dim, rng)
        wide = self.refined(scores, own.ROUGH_STEPS, own.ROUGH_INNER)
        entry = {"heads": self.heads, "select_error": wide.error}
        if wide.error > own.HOPELESS:
            yield wide._replace(exact=False), entry
            return
        for kept in self.remaining(wide.layer, wide.error):
            for fit in self.by_kind(wide.layer.chosen(kept).form):
                found = self.settled(fit)
                left = {"left": len(kept), "left_error": found.error, "kind": words(found.layer.form)}
                yield found, entry | left

    def by_kind(self, scores: Any) -> list[Found]:
        """Fits from these scores with the frequencies of each kind: the best few, the best first."""
        fits: list[Found] = []
        for kind in self.kinds:
            of_kind = Rotary(scores.a, scores.b, kind) if isinstance(kind, Rotation) else scores
            fits.append(self.closer(of_kind))
            if fits[-1].exact:
                break
        return sorted(fits, key=lambda fit: fit.error)[: calibration.FEW]

    def closer(self, scores: Any) -> Found:
        """The fit from these scores, in rounds of steps until one hardly helps."""
        best = self.refined(scores, own.FINE_STEPS, own.FINE_INNER)
        while not (best.enough or self.tools.out_of_time):
            found = self.refined(best.layer.form, own.FINE_STEPS, own.FINE_INNER)
            if found.error > own.GAINED * best.error:
                return min(best, found, key=lambda fit: fit.error)
            best = found
        return best

    def settled(self, fit: Found) -> Found:
        """A fit that no longer changes, after slow pairs have found their orientation."""
        if fit.exact or fit.error > own.NEARLY:
            return fit
        turned = self.oriented(fit)
        return self.closer(turned.layer.form) if turned.error < fit.error else fit

    def refined(self, scores: Any, steps: int, inner: int) -> Found:
        """Gauss-Newton from these scores."""
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
        found = refine(start, self.fit.x, self.fit.y, mask=self.fit.mask, config=config)
        return self.judged(found.layer)

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
        order = list(drop_order(layer, self.fit))
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


def conjugated(scores: Rotary, head: int) -> Rotary:
    """The scores with the slowest pair of a head turning the other way."""
    pair = scores.rotation.pairs + int(np.argmin(np.abs(scores.rotation.frequencies)))
    a, b = scores.a.copy(), scores.b.copy()
    a[head, :, pair] *= -1
    b[head, :, pair] *= -1
    return Rotary(a, b, scores.rotation)


def random_scores(kind: Kind, heads: int, dim: int, rng: np.random.Generator) -> Any:
    """Random scores whose standard deviation on white tokens is about a half."""
    if isinstance(kind, Rotation):
        a, b = rng.standard_normal((2, heads, dim, kind.width)) / np.sqrt(2 * dim * np.sqrt(kind.width))
        return Rotary.of_factors(a, b, kind)
    theta = rng.standard_normal((heads, dim, dim)) / (2 * dim)
    return Relative(Bilinear.whole(theta, np.zeros((heads, dim))), np.zeros((heads, kind.numbers)), kind)
