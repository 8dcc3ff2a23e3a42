"""Schedule: which examples, and which outputs, a descent works on.

Examples: about four equations per unknown first. `GROWTH` times as many (up to all) when these are fitted and fresh ones are not,
or when there is noise to average out. Twice as many when they determine the scores so badly that inner solves take long, as long as
that makes them shorter.
Outputs: all of them; a run with `combine_first` begins with random combinations where twice as many outputs as the derivative
of a row has directions would cost products and tell nothing more of the scores.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.scores import Scores
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import Chunks, cut
from attnlearn.solve._regress import Columns, Fit, total_squares
from attnlearn.solve._telling import telling_order
from attnlearn.solve._unknowns import combinations, outputs_wanted, sequences_wanted
from attnlearn.solve._white import Whitening
from attnlearn.solve.refinement._descent import Descended, Descent


def example_order(seed: int, number: int) -> Int[np.ndarray, "n"]:
    """The order in which a refinement takes its examples: it uses the first ones."""
    return np.random.default_rng([seed, 0x5EF1]).permutation(number)


class Schedule:
    """The examples of one call of `refine` in a random order; the first `used` of them are in use."""

    def __init__(self, white: Whitening, x: Tokens, y: Outputs, mask: Mask | None, descent: Descent) -> None:
        self.white, self.x, self.y, self.mask, self.descent = white, x, y, mask, descent
        self.config, self.causal, self.used = descent.config, descent.causal, 0
        self.tokens = x.shape[1] if mask is None else mask.sum() / len(mask)
        self.order, self.chosen = example_order(self.config.seed, len(x)), False

    def combine_first(self, scores: Scores) -> Scores:
        """The scores that fit random combinations of the outputs, if far fewer of them than there are tell as much."""
        out = self.y.shape[2]
        few = outputs_wanted(scores, out, self.tokens, self.causal)
        if few == out:
            return scores
        every, self.y = self.y, self.y @ combinations(out, few, self.config.seed).astype(self.y.dtype)
        scores = self.descend(scores).scores
        self.y = every
        return scores

    def descend(self, scores: Scores) -> Descended:
        """Fit a few examples, then more, until fresh ones are fitted as well or none are left."""
        most = min(len(self.x), self.config.max_examples or len(self.x))
        self.used = min(most, max(self.used, self._enough(scores)))
        while True:
            self.descent.trace.examples = self.used
            chunks, scale = self._examples(self.order[: self.used])
            found = self.descent.fit(scores, chunks, scale, final=self.used == most)
            scores = found.scores
            if found.stop == "ill_conditioned":
                if not self._more_telling(scores):
                    self.used = min(most, 2 * self.used)
                continue
            if self.used == len(self.x):
                return found
            fresh = self._fresh_residual(scores, found.fit, self.order[self.used : 2 * self.used])
            if self.used == most or self._done(found, fresh):
                return found._replace(residual=fresh)
            # A last small increase is not worth a fit of its own.
            more = calibration.GROWTH * self.used
            self.used = most if 2 * more >= most else more

    def _more_telling(self, scores: Scores) -> bool:
        """Put those examples first that tell more of saturated heads; False if that has been done or no head is saturated."""
        if self.chosen:
            return False
        self.chosen = True
        pool = self.order[: calibration.GROWTH * self.used]
        mask = None if self.mask is None else self.mask[pool]
        order = telling_order(scores, self.white.tokens(self.x[pool]), mask, self.causal)
        if order is None:
            return False
        self.order[: len(pool)] = pool[order]
        return True

    def _done(self, found: Descended, fresh: float) -> bool:
        """Whether examples that were not used are fitted as well as those that were, or no step is left."""
        limit = max(calibration.STANDS_OUT * found.residual, self.config.tolerance)
        fitted = found.stop in ("floor", "target") and fresh <= limit
        alike = found.stop == "noise" and fresh <= calibration.FAR_MORE * found.residual
        spent = found.stop == "deadline" or len(self.descent.trace.steps) >= self.config.max_steps
        return fitted or spent or (alike and not self.config.average)

    def _enough(self, scores: Scores) -> int:
        """Sequences that give the wanted number of equations per unknown."""
        equations = self.config.equations_per_unknown
        least = calibration.CHUNK_ROWS if self.config.stop_at_tolerance else calibration.LEAST_ROWS
        wanted = sequences_wanted(scores, self.y.shape[2], self.tokens, self.causal, equations, least)
        return int(min(np.ceil(wanted), len(self.x)))

    def _examples(self, chosen: np.ndarray) -> tuple[Chunks, float]:
        mask = None if self.mask is None else self.mask[chosen]
        y = self.y[chosen]
        scale = max(total_squares(y, mask), np.finfo(np.float64).tiny)
        return cut(self.white.tokens(self.x[chosen]), y, mask), scale

    def _fresh_residual(self, scores: Scores, fit: Fit, chosen: np.ndarray) -> float:
        chunks, scale = self._examples(chosen)
        dtype = chunks.dtype
        _, cost, _ = Columns(scores.astype(dtype), chunks, self.causal).residuals(fit.linear.astype(dtype))
        return float(np.sqrt(cost / scale))
