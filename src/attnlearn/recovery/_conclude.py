"""From the trail to a verdict: certify the best fit once, and collect the figures that explain the outcome.

The certify examples are read here and nowhere else, after the answer is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._certificate import Certificate, Check
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome
from attnlearn.data import Examples
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Fit
from attnlearn.recovery._outcome import Judged, clear_view, outcome
from attnlearn.recovery._problem import Problem, examples_for, held, layer_unknowns, memorised, rms
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import Trail
from attnlearn.solve._calibration import LOOK_MOST, SCAN_COORDINATES
from attnlearn.solve._held import Held, exactness_limit, example_scale, rounding_floor, unit_errors
from attnlearn.solve._sequences import without_copies
from attnlearn.solve._uncertainty import standard_errors
from attnlearn.solve._unknowns import sequences_wanted
from attnlearn.solve.certification import certify


@dataclass(frozen=True)
class Units:
    """The unit of every sequence (None: each is one), what a unit is called, and of which inputs claim C1 speaks."""

    members: np.ndarray | None
    name: str = "input"
    where: str = ""


@dataclass(frozen=True)
class Conclusion:
    """Outcome and certificate of the best fit, and the figures behind them."""

    outcome: Outcome
    certificate: Certificate
    stats: dict[str, Any]


def conclude(
    problem: Problem,
    trail: Trail,
    units: Units,
    *,
    extra: Check | None = None,
    deadline: float | None = None,
    on_step: Callable[..., None] | None = None,
) -> Conclusion:
    """Certify the best fit on the certify side and choose the outcome; C2 and C3 also rest on the check `extra`."""
    best, signals, examples = trail.best, trail.signals, problem.examples
    assert best is not None
    assert isinstance(signals, Signals)
    fit = problem.fit_side(_fit_sample(best.layer, examples, best.rank))
    scale = example_scale(fit)
    certificate = certify(
        best.layer,
        certify_side(problem, units.members),
        fit,
        scale=scale,
        support=None if signals.directions == examples.dim else signals.support,
        target=problem.target,
        rank=best.rank,
        unit=units.name,
        where=units.where,
        on_step=on_step,
    )
    if extra is not None:
        certificate = certificate.resting_on(extra)
    return _concluded(problem, trail, best, certificate, fit, scale)


def _concluded(
    problem: Problem, trail: Trail, best: Fit, certificate: Certificate, fit: Held, scale: float
) -> Conclusion:
    """The outcome that follows from a certificate, and its figures."""
    layer, select = best.layer, problem.select_side()
    misfit = trail.signals.misfit if isinstance(trail.signals, Signals) else calibration.MISFIT
    floor = rounding_floor(layer, select, scale)
    fitted, selected = (rms(unit_errors(layer, side, scale)) for side in (fit, select))
    judged = Judged(certificate, fitted, selected, exactness_limit(floor, select.x.dtype), misfit)
    stats: dict[str, Any] = {
        "fit_error": judged.fit_error,
        "select_error": judged.select_error,
        "rounding_floor": floor,
        "unknowns": layer_unknowns(layer, best.rank),
    }
    if certificate.rival is not None:
        stats["rival"] = certificate.rival
    ended = outcome(trail, judged, num=problem.examples.num, target=problem.target)
    return Conclusion(
        ended, certificate, stats | _explained(ended, problem, trail, best, judged, fit, select)
    )


def _explained(
    ended: Outcome, problem: Problem, trail: Trail, best: Fit, judged: Judged, fit: Held, select: Held
) -> dict[str, Any]:
    """The figures that an outcome asks for."""
    if ended is Outcome.NOT_ATTENTION:
        return next((need.evidence for need in trail.needs.values() if need.cause is not None), {})
    if ended is Outcome.BELOW_NOISE_FLOOR:
        return {"standard_errors": _standard_errors(best, fit, select)}
    if ended is Outcome.TOO_FEW_EXAMPLES:
        return {"examples_needed": _examples_needed(problem, trail, best, judged)}
    return {}


def _examples_needed(problem: Problem, trail: Trail, best: Fit, judged: Judged) -> int:
    """Examples that the unknowns, the certify side, and a fit that was memorised ask for."""
    examples = problem.examples
    clear = clear_view(trail, examples.num)
    if clear is not None and judged.select_error > judged.misfit:
        return clear
    coverage = judged.certificate.check("C1.coverage")
    certified = examples.num * (coverage.value or 0.0) / (coverage.threshold or 1.0)
    overfit = memorised(judged.fit_error, judged.select_error)
    more = calibration.MORE_LEAST * examples.num if overfit else certified
    return max(
        examples_for(layer_unknowns(best.layer, best.rank), examples), int(np.ceil(max(certified, more)))
    )


def certify_side(problem: Problem, units: np.ndarray | None) -> Held:
    """The certify sequences, with near copies of each other as one unit and near copies of other sides marked."""
    examples, split = problem.examples, problem.split
    side = held(examples, split.certify, units)
    others = np.concatenate([split.select, split.fit])
    most = min(LOOK_MOST, 8 * SCAN_COORDINATES // (examples.tokens * examples.dim))
    others = others[:: max(1, -(-len(others) // max(1, most)))]
    compared = examples.take(others)
    return without_copies(side, compared.x, compared.mask)


def _standard_errors(best: Fit, fit: Held, select: Held) -> dict[str, Any]:
    """Expected relative error of every Theta and W, if the residual is independent noise in the outputs."""
    layer = best.layer
    rest = layer(select.x, select.mask) - select.visible
    real = rest.size if select.mask is None else int(select.mask.sum()) * layer.out_dim
    noise = float(np.sqrt(np.sum(rest.astype(np.float64) ** 2) / real))
    found = standard_errors(layer, fit.x, noise, mask=fit.mask, rank=best.rank)
    fitted_on = best.examples or found.examples
    shrink = np.sqrt(found.examples / fitted_on)
    return {
        "noise": noise,
        "theta": (shrink * found.theta / np.linalg.norm(layer.theta, axis=(1, 2))).tolist(),
        "w": (shrink * found.w / np.linalg.norm(layer.w, axis=(1, 2))).tolist(),
        "examples": fitted_on,
    }


def _fit_sample(layer: AttentionLayer, examples: Examples, rank: int | None) -> int:
    """Fit sequences on which the Jacobian may be taken: four times what it begins with; padded ones tell less."""
    scores = layer.form.of_rank(rank)
    return 4 * int(np.ceil(sequences_wanted(scores, layer.out_dim, examples.tokens, layer.causal)))
