"""From a refined answer to a `Solution`: certify once, then say how the run ended and why.

The certify examples are read here and nowhere else, after the answer is frozen. When the certificate does not hold
in full, the outcome is chosen by what the fit and select sides show:

| fit side | select side | outcome |
|---|---|---|
| exact | exact | HEADS_INDISTINGUISHABLE when another layer fits as well or two heads are too close, TOKENS_DEGENERATE when the tokens of a sequence determine each other, TOO_FEW_EXAMPLES when only the certify side is too small, otherwise NOT_ESTABLISHED |
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
from attnlearn._certificate import Certificate, Check, Status
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome
from attnlearn._types import ArrayLike
from attnlearn.data import Examples
from attnlearn.recovery import _calibration as calibration
from attnlearn.solve._calibration import APART_LEAST as CLOSE_HEADS
from attnlearn.solve._calibration import COPY_FIT, SCAN_SEQUENCES
from attnlearn.solve._diagnose import diagnose
from attnlearn.solve._held import Held, exactness_limit, example_scale, rounding_floor, unit_errors
from attnlearn.solve._scores import Scores
from attnlearn.solve._sequences import merged_units, sequence_names, without_copies
from attnlearn.solve._split import Split
from attnlearn.solve._uncertainty import standard_errors
from attnlearn.solve.certification import certify


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


def independent_units(examples: Examples, groups: ArrayLike | None) -> tuple[np.ndarray | None, str]:
    """The unit of every sequence (None: each is one) and what a unit is called; one streaming pass over the tokens.

    Identical sequences are one unit, and so are the sequences of a group.
    """
    members = None if groups is None else np.asarray(groups)
    if members is not None and members.shape != (examples.num,):
        return members, "group"  # the split says what is wrong with it
    rows = max(1, SCAN_SEQUENCES // max(1, examples.tokens * examples.dim))
    names = [sequence_names(x, mask) for x, _, mask in examples.chunks(rows)]
    units = merged_units(np.concatenate(names), members)
    return units, "group" if groups is not None else "input" if units is None else "distinct input"


def check_range(examples: Examples) -> None:
    """Refuse tokens or outputs so large or so small that products of them leave the range in which they can be computed."""
    sample = examples.take(np.arange(min(examples.num, calibration.RANGE_EXAMPLES)))
    largest = calibration.RANGE[examples.dtype.name]
    for name, array in (("x", sample.x), ("y", sample.y)):
        size = float(np.abs(array).max(initial=0.0))
        rule = f"must have entries of ordinary size ({1 / largest:.0e} to {largest:.0e}): multiply it by a constant"
        require(size == 0 or 1 / largest <= size <= largest, name, rule, f"a largest entry of {size:.2g}")


def conclude(
    layer: AttentionLayer,
    examples: Examples,
    split: Split,
    *,
    rank: int | None,
    support: Support | None,
    groups: np.ndarray | None,
    target: float | None,
    unit: str = "input",
    where: str = "",
    extra: Check | None = None,
    fitted_on: int | None = None,
    on_step: Callable[..., None] | None = None,
) -> Conclusion:
    """Certify `layer` on the certify side and choose the outcome; `fitted_on` examples made the answer.

    `groups` holds the unit of every sequence and `unit` its name; `where` names the inputs of which C1 speaks, and `extra` is
    a check of the route's own, on which C2 and C3 rest.
    """
    fit = held(examples, split.fit[: _fit_sample(layer, examples, rank)])
    select = held(examples, split.select)
    scale = example_scale(fit)
    certificate = certify(
        layer,
        _certify_side(examples, split, groups),
        fit,
        scale=scale,
        support=support,
        target=target,
        rank=rank,
        unit=unit,
        where=where,
        on_step=on_step,
    )
    if extra is not None:
        certificate = certificate.resting_on(extra)
    errors = {
        "fit_error": _rms(unit_errors(layer, fit, scale)),
        "select_error": _rms(unit_errors(layer, select, scale)),
        "rounding_floor": rounding_floor(layer, select, scale),
    }
    stats: dict[str, Any] = {**errors, "unknowns": unknowns(layer, rank)}
    if certificate.rival is not None:
        stats["rival"] = certificate.rival
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


def _certify_side(examples: Examples, split: Split, groups: np.ndarray | None) -> Held:
    """The certify sequences, with near copies of each other as one unit and near copies of other sides marked."""
    side = held(examples, split.certify, groups)
    others = np.concatenate([split.select, split.fit])
    most = min(COPY_FIT, 8 * SCAN_SEQUENCES // (examples.tokens * examples.dim))
    others = others[:: max(1, -(-len(others) // max(1, most)))]
    compared = examples.take(others)
    return without_copies(side, compared.x, compared.mask)


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
        failed = {check.code for check in certificate.checks if check.status is Status.FAILS}
        if "C2.rivals" in failed:
            return Outcome.HEADS_INDISTINGUISHABLE
        if failed & {"C2.keys", "C2.spread", "C2.tied", "C2.manifold", "C2.symmetry"}:
            return Outcome.TOKENS_DEGENERATE
        if failed and failed <= {"C1.coverage", "C1.copies", "C2.evidence", "C3.count"}:
            return Outcome.TOO_FEW_EXAMPLES
        close = (certificate.check("C2.apart").value or 0.0) < CLOSE_HEADS
        return Outcome.HEADS_INDISTINGUISHABLE if close else Outcome.NOT_ESTABLISHED
    if memorised(fit, judged):
        return Outcome.TOO_FEW_EXAMPLES
    if judged > calibration.MISFIT:
        return Outcome.NOT_ATTENTION
    near = (certificate.check("C2.apart").value or 0.0) < calibration.NEAR_HEADS
    return Outcome.HEADS_INDISTINGUISHABLE if near else Outcome.BELOW_NOISE_FLOOR
