"""From a refined answer to a `Solution`: certify once, then say how the run ended and why.

The certify examples are read here and nowhere else, after the answer is frozen. When the certificate does not hold
in full, the outcome is chosen by what the fit and select sides show:

| fit side | select side | outcome |
|---|---|---|
| exact | exact | HEADS_INDISTINGUISHABLE when two heads are too close, TOO_FEW_EXAMPLES when only the certify side is too small, otherwise NOT_ESTABLISHED |
| better than select | much worse | TOO_FEW_EXAMPLES, with the number that the unknowns ask for |
| equal errors, small | | HEADS_INDISTINGUISHABLE when two heads nearly coincide, otherwise BELOW_NOISE_FLOOR |
| equal errors, large | | NOT_ATTENTION, with the likeliest cause |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._canonical import Support
from attnlearn._certificate import Certificate, Status
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome
from attnlearn.data import Examples
from attnlearn.recovery import _calibration as calibration
from attnlearn.solve._calibration import APART_LEAST as CLOSE_HEADS
from attnlearn.solve._certify import (
    Held,
    certify,
    exactness_limit,
    example_scale,
    rounding_floor,
    unit_errors,
)
from attnlearn.solve._diagnose import diagnose
from attnlearn.solve._scores import Scores
from attnlearn.solve._split import Split
from attnlearn.solve._uncertainty import standard_errors


@dataclass(frozen=True)
class Conclusion:
    """Outcome and certificate of a frozen answer, and the figures behind them."""

    outcome: Outcome
    certificate: Certificate
    stats: dict[str, Any]


def held(examples: Examples, indices: np.ndarray, groups: np.ndarray | None = None) -> Held:
    """The examples at `indices` as arrays."""
    x, y, mask = examples.take(indices)
    return Held(x, y, mask, None if groups is None else groups[indices])


def conclude(
    layer: AttentionLayer,
    examples: Examples,
    split: Split,
    *,
    rank: int | None,
    support: Support | None,
    groups: np.ndarray | None,
    target: float | None,
    fitted_on: int | None = None,
    on_step: Callable[..., None] | None = None,
) -> Conclusion:
    """Certify `layer` on the certify side and choose the outcome; `fitted_on` examples made the answer."""
    fit = held(examples, split.fit[: _fit_sample(layer, examples, rank)])
    select = held(examples, split.select)
    scale = example_scale(fit)
    certificate = certify(
        layer,
        held(examples, split.certify, groups),
        fit,
        scale=scale,
        support=support,
        target=target,
        rank=rank,
        on_step=on_step,
    )
    errors = {
        "fit_error": _rms(unit_errors(layer, fit, scale)),
        "select_error": _rms(unit_errors(layer, select, scale)),
        "rounding_floor": rounding_floor(layer, select, scale),
    }
    stats: dict[str, Any] = {**errors, "unknowns": unknowns(layer, rank)}
    outcome = (
        Outcome.RECOVERED if certificate.certified else _shortfall(layer, certificate, select, stats, target)
    )
    if outcome is Outcome.NOT_ATTENTION:
        sample = held(examples, split.fit[: calibration.DIAGNOSED])
        stats["diagnosis"] = diagnose(sample.x, sample.y, sample.mask, layer.causal).to_json()
    if outcome is Outcome.BELOW_NOISE_FLOOR:
        stats["standard_errors"] = _standard_errors(layer, fit, select, rank, fitted_on)
    if outcome is Outcome.TOO_FEW_EXAMPLES:
        coverage = certificate.check("C1.coverage")
        certified = examples.num * (coverage.value or 0.0) / (coverage.threshold or 1.0)
        overfit = memorised(stats["fit_error"], stats["select_error"])
        more = calibration.MEMORISED_MORE * examples.num if overfit else certified
        stats["examples_needed"] = max(
            examples_needed(layer, examples, rank), int(np.ceil(max(certified, more)))
        )
    return Conclusion(outcome, certificate, stats)


def _standard_errors(
    layer: AttentionLayer, fit: Held, select: Held, rank: int | None, fitted_on: int | None
) -> dict[str, Any]:
    """Expected relative error of every Theta and W, if the residual is independent noise in the outputs."""
    rest = layer(select.x, select.mask) - (
        select.y if select.mask is None else select.y * select.mask[..., None]
    )
    real = rest.size if select.mask is None else int(select.mask.sum()) * layer.out_dim
    noise = float(np.sqrt(np.sum(rest.astype(np.float64) ** 2) / real))
    found = standard_errors(layer, fit.x, noise, mask=fit.mask, rank=rank)
    shrink = np.sqrt(found.examples / (fitted_on or found.examples))
    return {
        "noise": noise,
        "theta": (shrink * found.theta / np.linalg.norm(layer.theta, axis=(1, 2))).tolist(),
        "w": (shrink * found.w / np.linalg.norm(layer.w, axis=(1, 2))).tolist(),
        "examples": fitted_on or found.examples,
    }


def _fit_sample(layer: AttentionLayer, examples: Examples, rank: int | None) -> int:
    """Fit sequences on which the Jacobian may be taken: four times what it begins with; padded ones tell less."""
    scores = Scores.from_theta(layer.theta, layer.query_bias, rank)
    return 4 * int(np.ceil(scores.sequences_wanted(layer.out_dim, examples.tokens, layer.causal)))


def memorised(fit_error: float, select_error: float) -> bool:
    """Whether the select side is explained so much worse than the fit side that this one was learned by heart.

    >>> memorised(1e-3, 1.1e-3), memorised(1e-4, 0.02), memorised(1e-16, 1e-15)
    (False, True, False)
    """
    return select_error > max(calibration.OVERFIT * fit_error, calibration.NOTICEABLE)


def unknowns(layer: AttentionLayer, rank: int | None) -> int:
    """Free parameters of a layer with heads of the given rank (full by default), gauge removed."""
    m, d, o = layer.num_heads, layer.dim, layer.out_dim
    if rank is None or rank >= d:
        return m * (d * d + d + d * o) + o
    r = min(rank, o)
    return m * (rank * (2 * d - rank) + d + r * (d + o - r)) + o


def examples_needed(layer: AttentionLayer, examples: Examples, rank: int | None) -> int:
    """Sequences that give the calibrated number of equations per unknown, all sides of the split included."""
    rows = examples.tokens * examples.out_dim
    equations = calibration.EQUATIONS_NEEDED * unknowns(layer, rank)
    return max(calibration.CERTIFIED_LEAST, int(np.ceil(equations / rows / calibration.FIT_SHARE)))


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _shortfall(
    layer: AttentionLayer,
    certificate: Certificate,
    select: Held,
    stats: dict[str, Any],
    target: float | None,
) -> Outcome:
    fit, judged = stats["fit_error"], stats["select_error"]
    if target is not None and certificate.claim("C1").established:
        return Outcome.NOT_ESTABLISHED  # what was asked for holds, the other claims do not
    exact = exactness_limit(stats["rounding_floor"], select.x.dtype)
    if judged <= exact:
        if {check.code for check in certificate.checks if check.status is Status.FAILS} == {"C1.coverage"}:
            return Outcome.TOO_FEW_EXAMPLES
        close = (certificate.check("C2.apart").value or 0.0) < CLOSE_HEADS
        return Outcome.HEADS_INDISTINGUISHABLE if close else Outcome.NOT_ESTABLISHED
    if memorised(fit, judged):
        return Outcome.TOO_FEW_EXAMPLES
    if judged > calibration.MISFIT:
        return Outcome.NOT_ATTENTION
    near = (certificate.check("C2.apart").value or 0.0) < calibration.NEAR_HEADS
    return Outcome.HEADS_INDISTINGUISHABLE if near else Outcome.BELOW_NOISE_FLOOR
