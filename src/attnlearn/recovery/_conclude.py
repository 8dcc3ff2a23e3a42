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
from attnlearn.recovery._fit import Fit, Verdict
from attnlearn.recovery._outcome import Judged, clear_view, outcome, weak_remedy
from attnlearn.recovery._problem import Problem, examples_for, memorised
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import UNKNOWN, Trail
from attnlearn.solve._batch import Batch, exactness_limit, example_scale, rounding_floor, typical_error
from attnlearn.solve._calibration import LOOK_MOST, SCAN_COORDINATES
from attnlearn.solve._diagnose import Cause, Diagnosis
from attnlearn.solve._sequences import without_copies
from attnlearn.solve._unknowns import layer_unknowns, sequences_wanted
from attnlearn.solve.certification import certify
from attnlearn.solve.noise import certify_noisy

CAUSES = {
    "own token": Cause(
        "residual",
        1.0,
        "what the fit leaves is linear in the own token: a residual connection or a skip; subtract it from y",
    ),
    "position": Cause(
        "position",
        1.0,
        "what the fit leaves depends on the distance of query and key: scores depend on position, which positions= can be told",
    ),
    "distance": Cause(
        "position",
        1.0,
        "what the fit leaves depends on the distance of query and key: scores depend on position, which positions= can be told",
    ),
    "scores": Cause(
        "soft cap",
        1.0,
        "what the fit leaves follows powers of the scores: they pass through another function before the softmax",
    ),
    "sink": Cause(
        "sink",
        1.0,
        "what the fit leaves is as if one more key without a value took its share: an attention sink",
    ),
    "output": Cause(
        "output",
        1.0,
        "what the fit leaves is a function of the outputs: they are clipped, saturate or pass through another function",
    ),
}
"""What a residual shows, by the family of features that explains most of it; products of tokens have no one cause."""


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
    """Certify the best fit on the certify side and choose the outcome; C2 and C3 also rest on the check `extra`.

    A fit that leaves nothing to explain is certified to the end, however late it is; claims beside errors end at the `deadline`.
    """
    best, signals, examples = trail.best, trail.signals, problem.examples
    assert best is not None
    assert isinstance(signals, Signals)
    support = None if signals.directions == examples.dim else signals.support
    held = certify_side(problem, units.members)
    if best.verdict is Verdict.NOISE and problem.target is None and best.layer.plain_scores:
        used = problem.fit_side(best.examples or None, units.members)
        noisy = certify_noisy(
            best.layer, held, used, scale=example_scale(used), accuracy=problem.accuracy, support=support,
            rank=best.rank, unit=units.name, where=units.where, on_step=on_step, deadline=deadline,
        )  # fmt: skip
        return _concluded(problem, trail, best, _resting(noisy.certificate, extra), used, noisy.stats)
    fit = problem.fit_side(_fit_sample(best.layer, examples, best.rank))
    certificate = certify(
        best.layer,
        held,
        fit,
        scale=example_scale(fit),
        support=support,
        target=problem.target,
        rank=best.rank,
        unit=units.name,
        where=units.where,
        on_step=on_step,
        precision=_precision(problem, best),
    )
    return _concluded(problem, trail, best, _resting(certificate, extra), fit, {})


def _resting(certificate: Certificate, extra: Check | None) -> Certificate:
    return certificate if extra is None else certificate.resting_on(extra)


def _precision(problem: Problem, best: Fit) -> np.dtype:
    """The precision to which the outputs are exact, by their bits or by the plateau of the fit."""
    return problem.rounded_to if best.precision is None else np.dtype(best.precision)


def _concluded(
    problem: Problem, trail: Trail, best: Fit, certificate: Certificate, fit: Batch, figures: dict[str, Any]
) -> Conclusion:
    """The outcome that follows from a certificate, and its figures."""
    layer, select, scale = best.layer, problem.select_side(), example_scale(fit)
    misfit = trail.signals.misfit if isinstance(trail.signals, Signals) else calibration.MISFIT
    precision = _precision(problem, best)
    floor = rounding_floor(layer, select, scale, precision)
    fitted, selected = (typical_error(layer, side, scale) for side in (fit, select))
    judged = Judged(certificate, fitted, selected, exactness_limit(floor, precision), misfit)
    stats: dict[str, Any] = {
        "fit_error": judged.fit_error,
        "select_error": judged.select_error,
        "rounding_floor": floor,
        "precision": precision.name,
        "unknowns": layer_unknowns(layer, best.rank),
    } | figures
    if best.evidence.get("test_of_fit"):
        stats["test_of_fit"] = best.evidence["test_of_fit"]
    if certificate.rival is not None:
        stats["rival"] = certificate.rival
    ended = outcome(trail, judged, num=problem.examples.num, target=problem.target)
    return Conclusion(ended, certificate, stats | _explained(ended, problem, trail, best, judged))


def _explained(ended: Outcome, problem: Problem, trail: Trail, best: Fit, judged: Judged) -> dict[str, Any]:
    """The figures that an outcome asks for."""
    if ended is Outcome.NOT_ATTENTION:
        known = next((need.evidence for need in trail.needs.values() if need.cause is not None), {})
        return known if trail.cause() not in (None, UNKNOWN) else known | named_by_residual(best.structure)
    if ended is Outcome.ATTENTION_TOO_WEAK:
        return {"remedy": weak_remedy(problem.examples.dtype, _precision(problem, best))}
    if ended is Outcome.TOO_FEW_EXAMPLES:
        return {"examples_needed": _examples_needed(problem, trail, best, judged)}
    return {}


def named_by_residual(family: str | None) -> dict[str, Any]:
    """The diagnosis that the family which explains most of a residual stands for; empty where it stands for none."""
    cause = CAUSES.get(family or "")
    return {} if cause is None else {"diagnosis": Diagnosis((cause,)).to_json()}


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
        examples_for(layer_unknowns(best.layer, best.rank), examples.tokens * examples.out_dim),
        int(np.ceil(max(certified, more))),
    )


def certify_side(problem: Problem, units: np.ndarray | None) -> Batch:
    """The certify sequences, with near copies of each other as one unit and near copies of other sides marked."""
    examples, split = problem.examples, problem.split
    side = Batch.of(examples, split.certify, units)
    others = np.concatenate([split.select, split.fit])
    most = min(LOOK_MOST, 8 * SCAN_COORDINATES // (examples.tokens * examples.dim))
    others = others[:: max(1, -(-len(others) // max(1, most)))]
    compared = examples.take(others)
    return without_copies(side, compared.x, compared.mask)


def _fit_sample(layer: AttentionLayer, examples: Examples, rank: int | None) -> int:
    """Fit sequences on which the Jacobian may be taken: four times what it begins with; padded ones tell less."""
    scores = layer.form.of_rank(rank)
    return 4 * int(np.ceil(sequences_wanted(scores, layer.out_dim, examples.tokens, layer.visible)))
