"""Refine: Gauss-Newton on every parameter of a layer, from a start near the truth down to rounding or noise.

Minimises sum ‖F(x) - y‖^2 over Theta_i (whole, or of a given rank), c_i, W_i and b. W and b are eliminated
exactly (`_regress`), the scores move by Levenberg-Marquardt steps (`_step`) in the coordinates of a Kronecker
preconditioner (`_precondition`), tokens are made white first (`_chunks`).

Precision: inner solves run in float32, and a `thorough` run takes float64 before it gives up on a small residual: directions of
a ten-thousandth of the curvature, such as mixtures of heads that attend weakly, are noise to float32. Residuals are evaluated in float32 until they are below
`DOUBLE_BELOW`, then in the precision of the data, so each outer step wins up to four digits.
Outputs: where there are twice as many as the derivative of a row has directions, a run may `rehearse` on random combinations of
them, which tell the scores as much for a fraction of the products, and end on all of them.
Examples: about four equations per unknown first; more (up to all) when those are fitted and fresh ones are not,
or when there is noise to average out; twice as many when they determine the scores so badly that inner solves labour.

Stopping rule, in the words of `Refined.stop`:
  floor      the relative residual is at most `FLOOR` machine epsilons, or below `FLOOR_STALL` and no longer halving
  target     the relative residual is at most `RefineConfig.tolerance`
  noise      stationary: the best linear step would remove less than `STATIONARY` of the squared residual
  stalled    no damped step decreases the residual, or a large one has been crawling (`CRAWL`) for ten steps
  max_steps  none of these within `max_steps` outer steps
"noise" says that the optimum is reached and its residual is not rounding. Whether that is noise in y or another
local optimum cannot be seen from one fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._precision import common_dtype
from attnlearn._types import ArrayLike
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import Chunks, cut, on_threads, whitening
from attnlearn.solve._linearize import linearize
from attnlearn.solve._precondition import precondition
from attnlearn.solve._regress import Columns, Fit, checked_examples, eliminate, total_squares
from attnlearn.solve._scores import Scores, split_linear
from attnlearn.solve._step import Step, gauss_newton_step


@dataclass(frozen=True)
class RefineConfig:
    """Limits of `refine`; the defaults suit starts within 40 % of the truth.

    `tolerance`: stop at this relative residual (0: go to the floor); the last step may go beyond it, unless `sparing`
    asks for no digit more. `equations_per_unknown` and `max_examples`
    set how many examples are used at first and at most; with `average` false no more are taken only because of noise.
    With `lower` false the rank stays as it was given. `thorough` solves in float64 where float32 may be what stops it. `rehearse` spares outputs, for fits that should become exact.
    `seed` draws examples and combinations of outputs.

    >>> RefineConfig(max_steps=5).max_steps
    5
    """

    max_steps: int = 60
    max_inner: int = 400
    tolerance: float = 0.0
    sparing: bool = False
    damping: float = calibration.INITIAL_DAMPING
    equations_per_unknown: float = calibration.EQUATIONS_PER_UNKNOWN
    max_examples: int | None = None
    average: bool = True
    lower: bool = True
    thorough: bool = False
    rehearse: bool = False
    deadline: float | None = None
    seed: int = 0


DEFAULTS = RefineConfig()


@dataclass(frozen=True)
class Refined:
    """What `refine` returns: the layer, its relative residual, one dict per outer step, and why it stopped.

    `rank` is what every Theta_i was kept at in the end, None when they were free.

    `residual` is ‖F - y‖ over the spread of y about its mean, on examples that were not used when some were
    left, otherwise on those used. `examples` is the number used last.
    """

    layer: AttentionLayer
    residual: float
    stop: str
    examples: int
    rank: int | None
    steps: list[dict[str, Any]] = field(repr=False)


def refine(
    start: AttentionLayer,
    x: ArrayLike,
    y: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    rank: int | None = None,
    config: RefineConfig = DEFAULTS,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> Refined:
    """Least squares on all parameters from `start`, to rounding or to the noise floor.

    `rank` is the largest that a Theta_i may have; when all turn out to have less, less is used. The W and b of
    `start` do not matter. `on_step` sees the evidence of every outer step as it happens.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((40, 5, 4))
    >>> refined = refine(layer.replace(theta=1.1 * layer.theta), x, layer(x))
    >>> refined.stop, bool(np.abs(refined.layer.theta - layer.theta).max() < 1e-10)
    ('floor', True)
    """
    x, y, keep = checked_examples(x, y, mask, start.dim)
    dtype = common_dtype({"x": x, "start": start.theta})
    require(y.shape[2] == start.out_dim, "y", f"must have {start.out_dim} outputs, as start has", y)
    require(rank is None or rank >= 1, "rank", "must be at least 1", rank)
    white = whitening(x, keep)
    inside = white.enter(start.parameters)
    scores = Scores.from_theta(inside.theta, inside.query_bias, rank, float(np.finfo(dtype).eps))
    run = _Run(white, x, y, keep, start.causal, config, on_step)
    with on_threads():
        if config.rehearse:
            scores = run.rehearse(scores)
        scores, fit, residual, stop, used = run.descend(scores)
        w, b = split_linear(np.asarray(fit.linear, np.float64), start.num_heads)
        scores = scores.astype(np.float64)
    found = white.leave(Parameters(scores.theta(), w, scores.c, b))
    layer = AttentionLayer(*(array.astype(dtype) for array in found), causal=start.causal)
    return Refined(layer, residual, stop, used, scores.rank, run.steps)


class _Run:
    """The examples, their white coordinates and the evidence of one call of `refine`."""

    def __init__(self, white, x, y, mask, causal, config, on_step):
        self.white, self.x, self.y, self.mask = white, x, y, mask
        self.causal, self.config, self.damping = causal, config, config.damping
        self.on_step, self.steps, self.used = on_step, [], 0
        self.tokens = x.shape[1] if mask is None else mask.sum() / len(mask)
        self.began = time.perf_counter()
        self.order = np.random.default_rng([config.seed, 0x5EF1]).permutation(len(x))

    def rehearse(self, scores: Scores) -> Scores:
        """The scores that fit random combinations of the outputs, if far fewer of them than there are tell as much.

        The change of a row lies in the span of the differences between its values, m (k - 1) directions; combinations in that
        number see all of it, and what is more costs products and tells nothing of the scores.
        """
        out = self.y.shape[2]
        few = max(calibration.REHEARSED_OUTPUTS, int(np.ceil(scores.directions(self.tokens, self.causal))))
        if calibration.REHEARSED_SHARE * out < few:
            return scores
        drawn = np.random.default_rng([self.config.seed, 0x0075]).standard_normal((out, few))
        every, self.y = self.y, self.y @ np.linalg.qr(drawn)[0].astype(self.y.dtype)
        scores, *_ = self.descend(scores)
        self.y = every
        return scores

    def descend(self, scores: Scores) -> tuple[Scores, Fit, float, str, int]:
        """Fit a few examples, then more, until fresh ones are fitted as well or none are left."""
        most = min(len(self.x), self.config.max_examples or len(self.x))
        used = min(most, max(self.used, self.enough(scores)))
        while True:
            self.used = used
            chunks, scale = self.examples(self.order[:used])
            scores, fit, stop = self.fit(scores, chunks, scale, final=used == most)
            if stop == "laboured":
                used = min(most, 2 * used)
                continue
            residual = float(np.sqrt(fit.cost / scale))
            if used == len(self.x):
                return scores, fit, residual, stop, used
            fresh = self.fresh_residual(scores, fit, self.order[used : 2 * used])
            limit = max(calibration.FRESH_FACTOR * residual, self.config.tolerance)
            fitted = stop in ("floor", "target") and fresh <= limit
            alike = stop == "noise" and fresh <= calibration.FRESH_NOISE * residual
            if (
                fitted
                or (alike and not self.config.average)
                or used == most
                or len(self.steps) >= self.config.max_steps
            ):
                return scores, fit, fresh, stop, used
            # A last small increase is not worth a fit of its own.
            used = most if 2 * calibration.GROWTH * used >= most else calibration.GROWTH * used

    def enough(self, scores: Scores) -> int:
        """Sequences that give the wanted number of equations per unknown."""
        equations = self.config.equations_per_unknown
        least = calibration.LEAST_ROWS_SPARING if self.config.sparing else calibration.LEAST_ROWS
        wanted = scores.sequences_wanted(self.y.shape[2], self.tokens, self.causal, equations, least)
        return int(min(np.ceil(wanted), len(self.x)))

    def examples(self, chosen: np.ndarray) -> tuple[Chunks, float]:
        mask = None if self.mask is None else self.mask[chosen]
        y = self.y[chosen]
        scale = max(total_squares(y, mask), np.finfo(np.float64).tiny)
        return cut(self.white.tokens(self.x[chosen]), y, mask), scale

    def fresh_residual(self, scores: Scores, fit: Fit, chosen: np.ndarray) -> float:
        chunks, scale = self.examples(chosen)
        dtype = chunks.dtype
        _, cost, _ = Columns(scores.astype(dtype), chunks, self.causal).residuals(fit.linear.astype(dtype))
        return float(np.sqrt(cost / scale))

    def fit(self, scores: Scores, chunks: Chunks, scale: float, final: bool) -> tuple[Scores, Fit, str]:
        """Levenberg-Marquardt on one set of examples; returns the scores, W and b, and the reason to stop."""
        dtype = chunks.dtype
        single = chunks.astype(np.float32)
        scores, by, shrink, promised = scores.astype(dtype), None, 0.0, 1.0
        phase = inner = single
        higher, lowered_at = (None if self.config.lower else ()), np.inf
        fit = eliminate(scores.astype(np.float32), single, self.causal)
        while True:
            residual = float(np.sqrt(fit.cost / scale))
            slow = residual < calibration.LOWER_SLOW and shrink > calibration.LOWER_KEPT
            low = residual < calibration.LOWER_BELOW or slow
            lower = scores.lowered(residual) if higher is None and low else None
            stop = self.verdict(residual, shrink, promised, phase.dtype, final)
            if lower is not None and stop not in ("floor", "target"):
                higher, scores, by, shrink, promised = scores, lower.astype(dtype), None, 0.0, 1.0
                lowered_at = residual
                fit = eliminate(scores.astype(phase.dtype), phase, self.causal)
                continue
            as_good = stop == "noise" and residual > calibration.LOWER_KEPT * lowered_at
            if stop in ("noise", "stalled") and higher and not as_good:  # the lower rank was not the rank
                higher, scores, by, shrink, promised = (), higher, None, 0.0, 1.0
                fit = eliminate(scores.astype(phase.dtype), phase, self.causal)
                continue
            if inner is not chunks and phase is chunks and self.doubtful(stop, residual, shrink):
                inner, by, shrink, promised = chunks, None, 0.0, 1.0
                fit = eliminate(scores, chunks, self.causal)
                continue
            if phase.dtype != dtype and (stop or residual <= calibration.DOUBLE_BELOW):
                phase, shrink, promised = chunks, 0.0, 1.0
                fit = eliminate(scores, chunks, self.causal, near=fit)
                continue
            if stop:
                return scores, fit, stop
            at = linearize(scores, fit.linear, fit.factor, inner, self.causal)
            if by is None or residual > calibration.RENEW_ABOVE:
                by = precondition(at)
            trial = self.damped_step(scores, fit, at, by, phase, residual, scale)
            if trial is None:
                shrink = np.nan
                continue
            scores, new, promised = trial
            shrink, fit = float(np.sqrt(new.cost / fit.cost)), new
            if self.steps[-1]["inner"] >= calibration.LABOUR and not (final or higher):
                return scores, fit, "laboured"

    def doubtful(self, stop: str | None, residual: float, shrink: float) -> bool:
        """Whether a small residual that hardly falls may be due to inner solves in float32."""
        held = stop in ("floor", "noise", "stalled") or (stop is None and shrink > calibration.HALVED)
        held &= residual > calibration.FLOOR * float(np.finfo(np.float64).eps)
        return self.config.thorough and residual <= calibration.DOUBTED and held

    def verdict(self, residual: float, shrink: float, promised: float, dtype: Any, final: bool) -> str | None:
        """The reason to stop, or None."""
        eps = float(np.finfo(dtype).eps)
        if residual <= calibration.FLOOR * eps:
            return "floor"
        if residual <= self.config.tolerance:
            return "target"
        if not shrink <= calibration.HALVED and residual <= calibration.FLOOR_STALL * eps:
            return "floor"
        if promised <= (calibration.STATIONARY if final else calibration.STATIONARY_SUBSET):
            return "noise"
        if np.isnan(shrink) or self.crawling(residual) or self.creeping():
            return "stalled"
        return "max_steps" if len(self.steps) >= self.config.max_steps else None

    def crawling(self, residual: float) -> bool:
        """Whether the last steps on these examples hardly changed a large residual."""
        past = [s["residual"] for s in self.steps if s["accepted"] and s["examples"] == self.used]
        if residual <= calibration.CRAWL_ABOVE or len(past) <= calibration.CRAWL_STEPS:
            return False
        return past[-1] > (1 - calibration.CRAWL) * past[-1 - calibration.CRAWL_STEPS]

    def creeping(self) -> bool:
        """Whether the last steps, solved for in float64, together won less than a digit: then no number of them will do."""
        past = [s["residual"] for s in self.steps[-calibration.CREEP_STEPS :] if s["solved"] == "float64"]
        return len(past) == calibration.CREEP_STEPS and min(past) > calibration.CREEP * past[0]

    def damped_step(self, scores, fit, at, by, phase, residual, scale):
        """Raise the damping until a step decreases the residual; None when none does."""
        norm = max(fit.cost, np.finfo(np.float64).tiny) ** 0.5
        rest = [(part / norm).astype(at.chunks.dtype) for part in fit.rest]
        spare = calibration.FORCING_SPARE * self.config.tolerance / residual if self.config.sparing else 0.0
        least = calibration.FORCING_LEAST[at.chunks.dtype.name]
        accuracy = min(calibration.FORCING_MOST, max(residual, spare, least))
        damping, raise_by = self.damping, 4.0
        while damping <= calibration.DAMPING_LIMIT:
            began = time.perf_counter()
            step = gauss_newton_step(at, by, rest, damping, accuracy, self.config.max_inner)
            moved, new = self.attempt(scores, fit, step, norm, phase, anew=at.chunks is phase)
            promised = 2 * step.predicted
            ratio = (1 - new.cost / fit.cost) / promised if promised > 0 else np.nan
            accepted = bool(new.cost < fit.cost)
            self.note(step, new, phase, at.chunks.dtype, damping, ratio, accepted, scale, began)
            if accepted:
                damping = damping / 10 if ratio > 0.75 else damping * 3 if ratio < 0.25 else damping
                self.damping = max(damping, 1e-9)
                return moved, new, promised
            if promised <= calibration.STATIONARY or len(self.steps) >= self.config.max_steps:
                return None
            damping, raise_by = max(damping, 1e-4) * raise_by, 2 * raise_by
        return None

    def attempt(
        self, scores: Scores, fit: Fit, step: Step, norm: float, phase: Chunks, anew: bool
    ) -> tuple[Scores, Fit]:
        """The scores after a step, and W and b for them: `anew`, or corrected from those before it."""
        moved = scores.shaped(scores.flat() + norm * step.scores.flat().astype(scores.c.dtype))
        if anew:  # derivatives in this precision want P^T P of these scores
            return moved, eliminate(moved.astype(phase.dtype), phase, self.causal)
        near = fit._replace(linear=fit.linear + norm * np.asarray(step.linear, fit.linear.dtype))
        return moved, eliminate(moved, phase, self.causal, near=near)

    def note(self, step, new, phase, solved, damping, ratio, accepted, scale, began):
        info = {
            "step": len(self.steps),
            "residual": float(np.sqrt(new.cost / scale)),
            "inner": step.inner,
            "damping": float(damping),
            "ratio": float(ratio),
            "accepted": accepted,
            "precision": phase.dtype.name,
            "solved": solved.name,
            "examples": self.used,
            "seconds": time.perf_counter() - began,
            "elapsed": time.perf_counter() - self.began,
        }
        self.steps.append(info)
        if self.on_step is not None:
            self.on_step(info)
