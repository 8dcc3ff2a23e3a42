"""The refine phase: the shared Gauss-Newton on as many fit examples as the unknowns ask for.

It takes the answer of a route (theta, w, query_bias, output_bias in the state) and leaves the refined answer in the
same fields. `refine` itself starts with few examples and adds more; what it may add is bounded here, so that memory
depends on the layer and not on the number of examples. Only when there is noise to average out, all fit examples are
used, as far as memory is granted. Computed in float64 whatever the data are; the answer has their dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from attnlearn._canonical import merged
from attnlearn._layer import AttentionLayer
from attnlearn.data import Examples
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._conclude import held, unknowns
from attnlearn.solve._calibration import APART_LEAST, DOUBTED, VISIBLE
from attnlearn.solve._heads import head_visibility
from attnlearn.solve._held import Held, exactness_limit, example_scale, rounding_floor, unit_errors
from attnlearn.solve._refine import RefineConfig, Refined, refine
from attnlearn.solve._scores import Scores

State = TypeVar("State")
Remix = Callable[..., AttentionLayer | None]
"""Problem, state, a refined layer and `tools` to a start with other mixtures of its heads, or None."""


def fitted(info: dict[str, Any]) -> bool:
    """Whether the evidence of `refine_phase` says that nothing is left to explain."""
    return info["enough"] or info["stop"] in ("floor", "target")


def answer(state: Any) -> AttentionLayer:
    """The layer in a route's state."""
    return AttentionLayer(
        state.theta, state.w, state.query_bias, state.output_bias, causal=bool(state.causal)
    )


def refine_phase(
    problem: Any, state: State, tools: Tools, remix: Remix | None = None
) -> tuple[State, dict[str, Any]]:
    """Refine the answer in `state` on the fit side; evidence: residual by step, error on select, why it stopped.

    `remix` may know better mixtures of heads that do not fit.
    """
    start, guess = answer(state), getattr(state, "rank", None)
    mixtures = None if remix is None else partial(remix, problem, state, tools=tools)
    runs = _Attempts(problem, start, guess, tools, mixtures)
    best = runs.begin(start, guess)
    for improve in (
        runs.beyond_the_target,
        runs.with_free_rank,
        runs.beyond_the_target,
        runs.with_every_example,
        runs.without_idle_heads,
        runs.with_flat_heads,
    ):
        best = improve(best)
    refined = best.refined
    info = {
        "examples": refined.examples,
        "residual": refined.residual,
        "select_error": best.error,
        "stop": refined.stop,
        "enough": best.enough,
        "tried": runs.tried,
        "steps": refined.steps,
    }
    found = refined.layer.astype(problem.examples.dtype).parameters._asdict()
    return dataclasses.replace(state, rank=refined.rank, **found), info  # type: ignore[type-var]


class _Attempt(NamedTuple):
    refined: Refined
    error: float  # on select examples
    exact: bool  # to the rounding of the data's dtype
    enough: bool  # that, or to the target


class _Attempts:
    """One call of refine after another, each judged on the select side; what a later one may improve is kept."""

    def __init__(
        self,
        problem: Any,
        start: AttentionLayer,
        rank: int | None,
        tools: Tools,
        mixtures: Callable[[AttentionLayer], AttentionLayer | None] | None,
    ) -> None:
        self.examples, self.split, self.target = problem.examples, problem.split, problem.target
        self.tools, self.mixtures = tools, mixtures
        rows = self.examples.tokens * self.examples.out_dim
        most = int(np.ceil(calibration.REFINE_EQUATIONS * unknowns(start, rank) / rows))
        self.fit = held(self.examples, self.split.fit[: max(most, calibration.REFINE_FEWEST)])
        self.select, self.scale = held(self.examples, self.split.select), example_scale(self.fit)
        self.tried: list[dict[str, Any]] = []

    def attempt(self, start: AttentionLayer, fit: Held, rank: int | None, **limits: Any) -> _Attempt:
        """Refine `start` with Theta of the given rank on `fit`."""
        dtype = self.examples.dtype
        rounding = 0.0 if dtype == np.float64 else float(np.finfo(dtype).eps) / 2
        tolerance = max(rounding, calibration.TARGET_RESIDUAL * (self.target or 0.0))
        refined = refine(
            start.astype(np.float64),
            np.asarray(
                fit.x, np.float64
            ),  # what float32 outputs can tell lies below what float32 sums can hold
            np.asarray(fit.y, np.float64),
            mask=fit.mask,
            rank=rank,
            config=RefineConfig(
                seed=self.tools.seed,
                tolerance=tolerance,
                sparing=tolerance > rounding,
                rehearse=True,
                average=False,
                **limits,
            ),
            on_step=lambda step: self.tools.progress.update(residual=step["residual"]),
        )
        found = self.judged(refined)
        self.tried.append(
            {
                "rank": refined.rank,
                "residual": refined.residual,
                "stop": refined.stop,
                "select_error": found.error,
            }
        )
        return found

    def begin(self, start: AttentionLayer, rank: int | None) -> _Attempt:
        """A first attempt, with heads that nearly coincide, at the start or after a few steps, taken for one seen twice."""
        fewer = _without_twins(start, rank)
        found = self.attempt(fewer, self.fit, rank, max_steps=calibration.FIRST_STEPS)
        found = self.continued(self.remixed(self.without_twins(found)))
        if found.enough or fewer.num_heads == start.num_heads:
            return found
        apart = self.attempt(start, self.fit, rank, max_steps=calibration.FIRST_STEPS)
        if apart.error >= calibration.WHOLE_BETTER * found.error:
            return found
        return self.continued(apart)  # they are two

    def remixed(self, found: _Attempt) -> _Attempt:
        """The attempt, or one from other mixtures of its heads, as long as these fit better."""
        while not found.enough and self.mixtures is not None:
            start = self.mixtures(found.refined.layer)
            if start is None:
                break
            again = self.attempt(start, self.fit, found.refined.rank, max_steps=calibration.FIRST_STEPS)
            if again.error >= found.error:
                break
            found = again
        return found

    def without_twins(self, found: _Attempt) -> _Attempt:
        """The attempt, without heads that came so close to others that they are one, as far as that does no harm."""
        while not found.enough:
            layer, rank = found.refined.layer, found.refined.rank
            fewer = _without_twins(layer, rank)
            if fewer.num_heads == layer.num_heads:
                break
            again = self.attempt(fewer, self.fit, rank, max_steps=calibration.FIRST_STEPS)
            if again.error > found.error:
                break
            found = again
        return found

    def continued(self, found: _Attempt) -> _Attempt:
        """The attempt, and as many more steps as it takes, if it ran out of them or of float32's digits; evidence of both."""
        spent = found.refined.stop == "max_steps" or found.refined.residual <= DOUBTED
        if found.enough or not spent:
            return found
        limits = {"max_steps": calibration.MORE_STEPS, "thorough": True}
        further = self.attempt(found.refined.layer, self.fit, found.refined.rank, **limits)
        steps = [*found.refined.steps, *further.refined.steps]
        return further._replace(refined=dataclasses.replace(further.refined, steps=steps))

    def judged(self, refined: Refined) -> _Attempt:
        """The answer with its error on the select side."""
        layer = refined.layer.astype(self.examples.dtype)
        errors = unit_errors(layer, self.select, self.scale)
        error = _rms(errors)
        limit = exactness_limit(rounding_floor(layer, self.select, self.scale), self.examples.dtype)
        reached = errors.max() <= calibration.TARGET_MARGIN * (self.target or 0.0)
        return _Attempt(refined, error, error <= limit, bool(error <= limit or reached))

    def beyond_the_target(self, best: _Attempt) -> _Attempt:
        """The average example may be on target while the worst is not: then as far as rounding allows."""
        if best.enough or best.refined.stop != "target" or self.target is None:
            return best
        self.target = None
        return self.attempt(best.refined.layer, self.fit, best.refined.rank)

    def with_free_rank(self, best: _Attempt) -> _Attempt:
        """The rank may be what keeps the fit from being exact."""
        if best.enough or best.refined.rank is None:
            return best
        whole = self.attempt(
            best.refined.layer, self.fit, None, max_steps=calibration.WHOLE_STEPS, lower=False
        )
        if whole.error >= calibration.WHOLE_BETTER * best.error:
            return best
        return whole if whole.refined.stop == "target" else self.continued(whole)

    def with_every_example(self, best: _Attempt) -> _Attempt:
        """Where there is noise to average out."""
        if best.enough or best.refined.stop != "noise" or best.error >= calibration.MISFIT:
            return best
        every = held(self.examples, self.split.fit[: _affordable(self.examples)])
        limits = {"equations_per_unknown": np.inf, "max_steps": calibration.EVERY_STEPS}
        return self.attempt(best.refined.layer, every, best.refined.rank, **limits)

    def without_idle_heads(self, best: _Attempt) -> _Attempt:
        """A start may have had too many heads."""
        layer = best.refined.layer
        alone = head_visibility(layer.astype(self.examples.dtype), self.select, self.scale)
        needed = _needed(layer, alone < VISIBLE * best.error)
        if needed.num_heads == layer.num_heads:
            return best
        fewer = self.attempt(needed, self.fit, best.refined.rank, max_steps=calibration.LAST_STEPS)
        return fewer if fewer.enough or fewer.error <= best.error else best

    def with_flat_heads(self, best: _Attempt) -> _Attempt:
        """A Theta that is zero to rounding is zero: relative to its own size nothing could be said of it."""
        layer = best.refined.layer
        sizes = np.linalg.norm(layer.theta, axis=(1, 2))
        token = max(float(np.sqrt(np.mean(np.square(self.select.x, dtype=np.float64)))), np.finfo(float).tiny)
        biases = np.linalg.norm(layer.query_bias, axis=1) / token  # a Theta whose scores are as large
        largest = max(sizes.max(), biases.max())
        tiny = (sizes > 0) & (sizes <= np.sqrt(np.finfo(self.examples.dtype).eps) * largest)
        if not (best.exact and tiny.any()):
            return best
        theta = np.where(tiny[:, None, None], 0, layer.theta)
        flat = self.judged(dataclasses.replace(best.refined, layer=layer.replace(theta=theta)))
        return flat if flat.exact else best


def _without_twins(layer: AttentionLayer, rank: int | None) -> AttentionLayer:
    """The layer at this rank, with heads that nearly coincide as one; noise beyond the rank would set them apart."""
    kept = Scores.from_theta(layer.theta, layer.query_bias, rank).theta()
    return merged(layer.replace(theta=kept), calibration.TWINS)


def _needed(layer: AttentionLayer, idle: np.ndarray) -> AttentionLayer:
    """The layer without heads that the outputs do not show, and with heads that are nearly the same as one."""
    if idle.all():
        return layer
    heads = (layer.theta[~idle], layer.w[~idle], layer.query_bias[~idle])
    return AttentionLayer(*heads, layer.output_bias, causal=layer.causal).canonical(APART_LEAST)


def _affordable(examples: Examples) -> int:
    """Examples of which refine may hold a copy, in float64."""
    one = 8 * examples.tokens * (examples.dim + examples.out_dim)
    return max(calibration.REFINE_FEWEST, calibration.REFINE_BYTES // one)


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))
