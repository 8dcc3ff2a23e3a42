"""Repairs: what may keep a fit from being exact, and the start that would mend it. The table is `REPAIRS`.

Each repair looks at the best attempt so far and gives another start, or None if it does not apply. The new attempt is kept if it
lowers the select error by the repair's factor. A repair that `repeats` is tried again as long as it is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnlearn._canonical import merged
from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Attempt, Fit, Fitting, Start, Verdict
from attnlearn.recovery._problem import Candidate, Problem, Weights, memorised
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment import unmix_again
from attnlearn.solve._batch import typical_error
from attnlearn.solve._calibration import APART_LEAST, NEGLIGIBLE, STANDS_OUT
from attnlearn.solve._drop import drop_order
from attnlearn.solve._heads import head_separation, head_visibility, offsets_of
from attnlearn.solve.refinement import Refined

SHORT = {"max_steps": calibration.SHORT_STEPS}
LONG = {"max_steps": calibration.STEPS_MOST, "float64_solves": True}


def merge_duplicates(fitting: Fitting, best: Attempt) -> Start | None:
    """Heads that came close to each other are one head that was seen twice."""
    if best.enough:
        return None
    fewer = without_duplicates(best.layer, best.refined.rank)
    return None if fewer.num_heads == best.layer.num_heads else best.then(fewer, limits=SHORT)


def mix_otherwise(fitting: Fitting, best: Attempt) -> Start | None:
    """Heads that are mixtures of the true ones are unmixed again."""
    if best.enough:
        return None
    mixed = unmix_again(fitting.problem, fitting.signals, best.layer, fitting.tools)
    return None if mixed is None else best.then(mixed, limits=SHORT)


def take_more_steps(fitting: Fitting, best: Attempt) -> Start | None:
    """The attempt ran out of steps or of float32's digits; an exact one may have had a digit to win for the certificate."""
    spent = best.refined.stop == "max_steps"
    spent |= best.refined.residual <= NEGLIGIBLE and not best.enough
    if not spent or best.start.limits == LONG or by_heart(fitting, best):
        return None
    return best.then(limits=LONG)


def by_heart(fitting: Fitting, best: Attempt) -> bool:
    """Whether heads whose number was only tried learned the fit side by heart: more steps and more freedom would learn more of it."""
    return fitting.tentative and memorised(best.refined.residual, best.error)


def keep_apart(fitting: Fitting, best: Attempt) -> Start | None:
    """Heads that were merged before the first attempt may be two after all."""
    proposed = fitting.proposed
    fewer = without_duplicates(proposed.layer, proposed.rank).num_heads < proposed.layer.num_heads
    return dataclasses.replace(proposed, limits=SHORT) if fewer and not best.enough else None


def go_beyond_the_target(fitting: Fitting, best: Attempt) -> Start | None:
    """The average example may be on target while the worst is not: then as far as rounding allows."""
    return best.then(beyond=True) if best.refined.stop == "target" and not best.enough else None


def free_the_rank(fitting: Fitting, best: Attempt) -> Start | None:
    """The rank may have been inferred too small."""
    if best.enough or best.refined.rank is None or by_heart(fitting, best):
        return None
    return best.then(rank=None, limits=SHORT | {"lower": False})


def use_every_example(fitting: Fitting, best: Attempt) -> Start | None:
    """There is noise to average out."""
    if best.enough or best.refined.stop != "noise" or best.start.every:
        return None
    if best.error >= fitting.signals.misfit and fitting.tested(best).structured:
        return None
    return best.then(every=True, limits=SHORT | {"equations_per_unknown": np.inf})


def drop_idle_heads(fitting: Fitting, best: Attempt) -> Start | None:
    """The candidate may have had too many heads."""
    layer = best.layer
    alone = head_visibility(layer.astype(fitting.problem.examples.dtype), fitting.select, fitting.scale)
    idle = alone < STANDS_OUT * best.error
    if idle.all():
        return None
    fewer = layer.chosen(~idle).canonical(APART_LEAST)
    return None if fewer.num_heads == layer.num_heads else best.then(fewer, limits=LONG)


def drop_a_needless_head(fitting: Fitting, best: Attempt) -> Start | None:
    """Two heads that nearly coincide in an exact fit may share what one would do."""
    layer = best.layer
    if not best.exact or layer.num_heads == 1 or head_separation(layer) >= calibration.NEAR_HEADS:
        return None
    kept, _ = next(drop_order(layer, fitting.side.astype(np.float64)))
    return best.then(layer.chosen(kept), limits=LONG)


@dataclass(frozen=True)
class Repair:
    """A name for the report, the start that it gives, and the share of the error that must remain at most for it to be kept."""

    name: str
    start: Callable[[Fitting, Attempt], Start | None]
    keep: float = 1.0
    repeats: bool = False

    def kept(self, found: Attempt, best: Attempt) -> bool:
        """Whether the new attempt replaces the best one."""
        return found.enough or found.error <= self.keep * best.error


REPAIRS = (
    Repair("merge duplicates", merge_duplicates, repeats=True),
    Repair("unmix again", mix_otherwise, repeats=True),
    Repair("more steps", take_more_steps, keep=np.inf),
    Repair("keep duplicates apart", keep_apart, calibration.NEARLY_ALL),
    Repair("more steps", take_more_steps, keep=np.inf),
    Repair("beyond the target", go_beyond_the_target, keep=np.inf),
    Repair("free rank", free_the_rank, calibration.NEARLY_ALL),
    Repair("more steps", take_more_steps, keep=np.inf),
    Repair("beyond the target", go_beyond_the_target, keep=np.inf),
    Repair("every example", use_every_example, keep=np.inf),
    Repair("drop idle heads", drop_idle_heads),
    Repair("drop a needless head", drop_a_needless_head, keep=0.0, repeats=True),
)


def fit(problem: Problem, signals: Signals, candidate: Candidate, tools: Tools) -> Fit:
    """Refine, repair and judge a candidate."""
    fitting = Fitting(problem, signals, candidate, tools)
    best, steps = _repaired(fitting, candidate)
    best = with_flat_heads(fitting, best)
    refined = best.refined
    evidence = {
        "of": candidate.by,
        "heads": refined.layer.num_heads,
        "rank": refined.rank,
        "examples": refined.examples,
        "residual": refined.residual,
        "select_error": best.error,
        "stop": refined.stop,
        "tried": fitting.tried,
        "steps": steps,
    }
    rounded = fitting.plateau(best)
    verdict = Verdict.EXACT if rounded else fitting.verdict(best)
    if verdict in (Verdict.NOISE, Verdict.MISFIT):
        evidence["test_of_fit"] = fitting.tested(best).to_json()
    if tools.out_of_time and not (best.enough or rounded):  # repairs that would follow were not tried
        verdict = Verdict.UNFINISHED
    if verdict is Verdict.EXACT and candidate.tentative and _near(refined.layer, problem.examples.tokens):
        verdict = Verdict.NOISE  # a head too many may be hidden in two that nearly coincide
    return Fit(
        Weights.of(refined.layer.astype(problem.examples.dtype)),
        refined.rank,
        verdict,
        best.error,
        refined.residual,
        refined.examples,
        candidate.by,
        candidate.weights.heads,
        candidate.tentative,
        candidate.clear_view,
        {"verdict": verdict.name} | evidence,
        refined.stop,
        fitting.tested(best).most.name if verdict is Verdict.MISFIT else None,
        "float32" if rounded else None,
    )


def _near(layer: AttentionLayer, tokens: int) -> bool:
    """Whether two heads nearly coincide."""
    return head_separation(layer, offsets_of(layer, tokens)) < calibration.NEAR_HEADS


def _repaired(fitting: Fitting, candidate: Candidate) -> tuple[Attempt, list[dict]]:
    """The best attempt, and the steps that led to it."""
    proposed = fitting.proposed
    if candidate.refined or candidate.at_optimum:
        error = typical_error(proposed.layer, fitting.side, fitting.scale)
        kept = Refined(proposed.layer, error, "given", 0, candidate.rank, [])
        given = fitting.judged(proposed, kept)
        if candidate.refined or given.exact:
            return given, []
    fewer = without_duplicates(proposed.layer, proposed.rank)
    best = fitting.attempt("first", dataclasses.replace(proposed, layer=fewer, limits=SHORT))
    steps = list(best.refined.steps)
    for repair in REPAIRS:
        while (start := repair.start(fitting, best)) is not None and not fitting.tools.out_of_time:
            found = fitting.attempt(repair.name, start)
            if not repair.kept(found, best):
                break
            best, steps = found, [*steps, *found.refined.steps]
            if not repair.repeats:
                break
    return best, steps


def without_duplicates(layer: AttentionLayer, rank: int | None) -> AttentionLayer:
    """The layer at this rank, with heads that nearly coincide as one; noise beyond the rank would set them apart."""
    kept = layer.form.of_rank(rank).theta()
    return merged(layer.replace(theta=kept), calibration.DUPLICATE)


def with_flat_heads(fitting: Fitting, best: Attempt) -> Attempt:
    """A Theta that is zero to rounding is zero: relative to its own size nothing could be said of it."""
    layer, dtype = best.layer, fitting.problem.examples.dtype
    if not layer.plain_scores:
        return best
    sizes = np.linalg.norm(layer.theta, axis=(1, 2))
    token = float(np.sqrt(np.mean(np.square(fitting.select.x, dtype=np.float64))))
    biases = np.linalg.norm(layer.query_bias, axis=1) / max(token, np.finfo(float).tiny)
    largest = max(sizes.max(), biases.max())  # a bias as a Theta whose scores are as large
    tiny = (sizes > 0) & (sizes <= np.sqrt(np.finfo(dtype).eps) * largest)
    if not (best.exact and tiny.any()):
        return best
    theta = np.where(tiny[:, None, None], 0, layer.theta)
    flat = fitting.judged(best.start, dataclasses.replace(best.refined, layer=layer.replace(theta=theta)))
    return flat if flat.exact else best
