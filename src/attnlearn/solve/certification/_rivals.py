"""A second opinion: is there another layer with the same outputs on these tokens?

It is a function of a layer and tokens. Head by head it tries to give the head's own outputs otherwise:

mirrored   (-Theta, -c) or (Theta^T, c), with W and a flat head fitted to the outputs
elsewhere  one head from a random start, refined
merged     one head in the place of the closest two, refined
split      two heads in the place of one, refined

If a linear map G permutes the keys of every sequence, each head has at least one copy (Theta G, G^T c, G^T W) with the same
outputs. In white coordinates G is orthogonal, and random starts are drawn from a law that no orthogonal map changes. So every
start that ends in an exact fit ends at each copy with the same probability, and the chance that n of them all come back
to the head they left is at most 2^-n. `starts_wanted()` = 20 agreeing starts exclude such a map with confidence 1 - 1e-6.

Cost: two small regressions for each head, and a Gauss-Newton fit of one head for each start. What can fail: starts that do
not become exact tell nothing and are not counted; rivals that differ in several heads at once are not looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn._maps import shrink
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve._deadline import passed
from attnlearn.solve._heads import drop_effects
from attnlearn.solve._regress import regress
from attnlearn.solve._white import Whitening, whitening
from attnlearn.solve.refinement import RefineConfig, refine


@dataclass(frozen=True)
class Rival:
    """Another layer with the same outputs: how it was found, in which head it differs, and its relative error.

    `replaced` is the Theta of that head in the found layer; in the other layer what stands in its place comes last.
    """

    layer: AttentionLayer
    replaced: np.ndarray
    how: str
    head: int
    distance: float
    residual: float

    def to_json(self) -> dict[str, Any]:
        """What is shown; the layer itself stays in memory."""
        return {
            "how": self.how,
            "head": self.head,
            "distance": self.distance,
            "residual": self.residual,
            "heads": self.layer.num_heads,
            "found": shrink(self.replaced).tolist(),
            "other": shrink(self.layer.scores_at(0).theta[-1]).tolist(),
        }


@dataclass(frozen=True)
class Opinion:
    """What was found: starts that came back to the head they left, and the first rival, if there is one."""

    tried: int
    agreed: int
    rival: Rival | None = None


def starts_wanted() -> int:
    """Starts that must come back to the head they left to exclude a symmetry of the tokens: 2^-n <= `DELTA`.

    >>> starts_wanted()
    20
    """
    return int(np.ceil(np.log2(1 / calibration.DELTA)))


def second_opinion(
    layer: AttentionLayer,
    held: Batch,
    *,
    thorough: bool = False,
    seed: int = 0,
    deadline: float | None = None,
    tolerance: float | None = None,
) -> Opinion | None:
    """Look for another fit of the layer's own outputs on the tokens of `held`; None if the time was over before the end.

    A fit counts that is exact, or with `tolerance` as close as that.

    >>> layer = AttentionLayer.random(num_heads=1, dim=4, seed=0)
    >>> u = np.random.default_rng(0).standard_normal((200, 2, 4))
    >>> second_opinion(layer, Batch(np.concatenate([u, -u], axis=1), np.zeros((200, 4, 4)))).rival.how
    'mirrored'
    """
    search = _Search(layer, held, thorough, seed, deadline, tolerance)
    tried = agreed = 0
    for how, head, found in search.candidates():
        if passed(deadline):
            return None
        tried += 1
        if found is None:
            continue
        rival = search.compare(how, head, *found)
        if rival is not None:
            return Opinion(tried, agreed, rival)
        agreed += how == "elsewhere"
    return None if passed(deadline) else Opinion(tried, agreed)


class _Search:
    """The layer's heads on a sample of tokens, in float64, and fits of their outputs."""

    def __init__(
        self,
        layer: AttentionLayer,
        held: Batch,
        thorough: bool,
        seed: int,
        deadline: float | None,
        tolerance: float | None,
    ) -> None:
        self.thorough, self.deadline = thorough, deadline
        rounding = float(np.finfo(held.x.dtype).eps)
        self.exact = max(calibration.NO_VARIANCE, calibration.ROUNDING_EPS * rounding)
        self.tolerance = max(self.exact, tolerance or 0.0)
        self.idle = self.exact / calibration.NEGLIGIBLE if tolerance is None else self.tolerance
        # Beside errors of the outputs, heads closer than a tenth are for the linear model of C3 to tell apart.
        self.same = max(calibration.APART_LEAST, self.idle) if tolerance is None else calibration.DIGIT
        self.layer = layer.astype(np.float64)
        rows = calibration.EQUATIONS_PER_UNKNOWN * layer.dim * (layer.dim + 1 + layer.out_dim)
        least = calibration.SAMPLE if thorough else calibration.PIECE
        number = max(least, rows // (held.x.shape[1] * min(layer.out_dim, layer.dim)))
        some = held.first(number)
        self.x, self.mask = some.x.astype(np.float64), some.mask
        self.white: Whitening = whitening(self.x, self.mask)
        self.rng = np.random.default_rng([seed, 0x21BA1])
        self.scale = example_scale(Batch(self.x, self.layer(self.x, self.mask), self.mask))

    def candidates(self) -> Iterator[tuple[str, int, tuple[AttentionLayer, float] | None]]:
        """How, which head, and the heads that take its place with their relative residual where they are exact."""
        heads = range(self.layer.num_heads)
        for head in heads:
            for start in self._mirrored(head):
                yield "mirrored", head, self._regressed(start, head)
        directions = self.white.directions
        starts = 2 * starts_wanted() if self.thorough else int(directions**2 <= calibration.SAMPLE)
        agreed = 0
        for number in range(starts):
            head = number % len(heads)
            found = self._refined(self._random(head), self.alone(head))
            yield "elsewhere", head, found
            agreed += found is not None
            if agreed >= starts_wanted():
                break
        if not self.thorough:
            return
        for head in heads:
            yield "split", head, self._refined(self._halves(head), self.alone(head))
        if len(heads) > 1:
            first, second = self._closest()
            both = self._of([first, second])
            yield "merged", first, self._refined(self._of([first]), both)

    def alone(self, head: int) -> AttentionLayer:
        """One head of the layer, without the output bias."""
        return self._of([head])

    def _of(self, heads: list[int]) -> AttentionLayer:
        layer = self.layer
        return AttentionLayer(
            layer.theta[heads], layer.w[heads], layer.query_bias[heads], causal=layer.causal
        )

    def _mirrored(self, head: int) -> list[AttentionLayer]:
        inside = self.white.enter(self.alone(head).parameters)
        turned = [
            (-inside.theta, -inside.query_bias),
            (np.swapaxes(inside.theta, 1, 2), inside.query_bias),
        ]
        return [self._leave(theta, bias, flat=True) for theta, bias in turned]

    def _leave(self, theta: np.ndarray, query_bias: np.ndarray, flat: bool = False) -> AttentionLayer:
        """Heads with these scores on white tokens, and a flat one if asked for; W is left to the fit."""
        if flat:
            theta = np.concatenate([theta, np.zeros_like(theta[:1])])
            query_bias = np.concatenate([query_bias, np.zeros_like(query_bias[:1])])
        w = np.zeros((*theta.shape[:2], self.layer.out_dim))
        found = self.white.leave(Parameters(theta, w, query_bias, np.zeros(self.layer.out_dim)))
        return AttentionLayer(*found, causal=self.layer.causal)

    def _random(self, head: int) -> AttentionLayer:
        inside = self.white.enter(self.alone(head).parameters)
        theta = self.rng.standard_normal(inside.theta.shape)
        size = max(float(np.linalg.norm(inside.theta)), calibration.NEGLIGIBLE)
        return self._leave(theta * size / np.linalg.norm(theta), np.zeros_like(inside.query_bias))

    def _halves(self, head: int) -> AttentionLayer:
        inside = self.white.enter(self.alone(head).parameters)
        away = self.rng.standard_normal(inside.theta.shape)
        away *= max(float(np.linalg.norm(inside.theta)), calibration.NEGLIGIBLE) / np.linalg.norm(away)
        theta = np.concatenate([inside.theta + away, inside.theta - away])
        return self._leave(theta, np.repeat(inside.query_bias, 2, axis=0))

    def _closest(self) -> tuple[int, int]:
        stacked = np.concatenate([self.layer.theta, self.layer.query_bias[:, None]], axis=1)
        apart = np.linalg.norm(stacked[:, None] - stacked[None], axis=(2, 3)) + np.diag(
            np.full(len(stacked), np.inf)
        )
        first, second = np.unravel_index(int(np.argmin(apart)), apart.shape)
        return int(first), int(second)

    def _regressed(self, start: AttentionLayer, head: int) -> tuple[AttentionLayer, float] | None:
        target = self.alone(head)(self.x, self.mask)
        w, b, residual = regress(
            start.theta, start.query_bias, self.x, target, mask=self.mask, causal=start.causal
        )
        return (start.replace(w=w, output_bias=b), residual) if residual <= self.tolerance else None

    def _refined(self, start: AttentionLayer, wanted: AttentionLayer) -> tuple[AttentionLayer, float] | None:
        target = wanted(self.x, self.mask)
        config = RefineConfig(
            max_steps=calibration.STEPS_MOST // 2, tolerance=calibration.DIGIT * self.exact, average=False, lower=False,
            deadline=self.deadline,
        )  # fmt: skip
        found = refine(start, self.x, target, mask=self.mask, config=config)
        return (found.layer, found.residual) if found.residual <= self.tolerance else None

    def compare(self, how: str, head: int, found: AttentionLayer, residual: float) -> Rival | None:
        """The rival that `found` makes when it takes the place of a head, or None if it is the same head."""
        replaced = list(self._closest()) if how == "merged" else [head]
        found = self._needed(found)
        apart = self._apart(found, self._of(replaced))
        if apart <= self.same:
            return None
        others = [other for other in range(self.layer.num_heads) if other not in replaced]
        rest = self.layer
        rival = AttentionLayer(
            np.concatenate([rest.theta[others], found.theta]),
            np.concatenate([rest.w[others], found.w]),
            np.concatenate([rest.query_bias[others], found.query_bias]),
            rest.output_bias + found.output_bias,
            causal=rest.causal,
        )
        return Rival(rival, rest.theta[head], how, head, apart, residual)

    def _needed(self, found: AttentionLayer) -> AttentionLayer:
        """The heads that cannot be left out, equal ones as one."""
        found = found.canonical(self.same)
        sample = Batch(self.x, np.zeros((*self.x.shape[:2], 1)), self.mask).first(calibration.SAMPLE)
        while found.num_heads > 1:
            effects = drop_effects(found, sample, sample, self.scale).max(axis=1)
            if effects.min() > self.idle:
                break
            kept = np.delete(np.arange(found.num_heads), int(np.argmin(effects)))
            w, b, _ = regress(
                found.theta[kept], found.query_bias[kept], self.x, found(self.x, self.mask),
                mask=self.mask, causal=found.causal,
            )  # fmt: skip
            found = AttentionLayer(found.theta[kept], w, found.query_bias[kept], b, causal=found.causal)
        return found

    def _apart(self, found: AttentionLayer, head: AttentionLayer) -> float:
        """How far the scores are from those of a head, relative to these; 1 where fewer heads stand in for several.

        Of several heads it is the root of the mean square, weighted by the norms of W. Two heads on either side of one leave that
        mean square in the outputs, so a fit that has not converged ends with two heads that are the same one.
        """
        if found.num_heads < head.num_heads:
            return 1.0
        inside, own = (self.white.enter(layer.parameters) for layer in (found, head))
        difference = np.concatenate(
            [inside.theta - own.theta, (inside.query_bias - own.query_bias)[:, None]], axis=1
        )
        weights = np.linalg.norm(inside.w, axis=(1, 2))
        squares = np.sum(difference**2, axis=(1, 2)) @ weights / max(weights.sum(), np.finfo(float).tiny)
        size = np.linalg.norm(np.concatenate([own.theta, own.query_bias[:, None]], axis=1))
        return float(np.sqrt(squares) / max(size, calibration.NEGLIGIBLE))
