"""How a run ended: one pure function of the signals, the trail and the certificate.

| what is known | outcome |
|---|---|
| no signals | what the signals need: TOKENS_DEGENERATE, ATTENTION_TOO_WEAK |
| no fit | NOT_ATTENTION when even the widest search does not fit its own examples; otherwise what the first proposer needs |
| every claim is established | RECOVERED |
| a target was given, and C1 is established | ON_TARGET |
| both sides exact | ATTENTION_TOO_WEAK when only the bound of C3 fails and the linear fit leaves less than a hundredth of the outputs; HEADS_INDISTINGUISHABLE when another layer fits as well or two heads are too close; TOKENS_DEGENERATE when the tokens of a sequence determine each other; TOO_FEW_EXAMPLES when only the certify side is too small; otherwise NOT_ESTABLISHED |
| select side much worse than fit side | TOO_FEW_EXAMPLES |
| equal errors that the input explains in part | large: NOT_ATTENTION, or TOO_FEW_EXAMPLES when no cause is known and more examples would show every head clearly; small: HEADS_INDISTINGUISHABLE when two heads nearly coincide, NOT_ESTABLISHED when the fit did not come to its end or the error is a matter of conditioning, otherwise NOT_ATTENTION |
| equal errors that nothing explains | as for exact sides where tokens or rivals are the reason; HEADS_INDISTINGUISHABLE when two heads nearly coincide; otherwise BELOW_NOISE_FLOOR: the accuracy that was reached is worse than the one asked for |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnlearn._certificate import Certificate, Status
from attnlearn._result import Outcome
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._problem import Need, memorised
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import UNKNOWN, Trail
from attnlearn.solve._calibration import APART_LEAST

TOKENS_TIED = {"C2.keys", "C2.spread", "C2.tied", "C2.manifold", "C2.symmetry"}
BOUND = {"C3.bound", "C2.apart", "C3.count"}
"""The bound on the parameters, and the checks that rest on it."""
LARGER = "use larger tokens (rounding is bounded by its worst case, which more examples do not lower)"
TOO_FEW_UNITS = {"C1.coverage", "C1.copies", "C2.evidence", "C3.count"}


@dataclass(frozen=True)
class Judged:
    """The certificate of the best fit, its errors, and those up to which a fit counts as exact and above which it leaves structure."""

    certificate: Certificate
    fit_error: float
    select_error: float
    exact: float
    misfit: float = calibration.MISFIT

    @property
    def apart(self) -> float:
        """How far the closest two heads are from each other."""
        value = self.certificate.check("C2.apart").value
        return 1.0 if value is None else value


def outcome(trail: Trail, judged: Judged | None, *, num: int, target: float | None = None) -> Outcome:
    """The outcome of a finished run on `num` examples; `judged` is None when there is no fit."""
    need = unmet_need(trail)
    if need is not None:
        return need.outcome
    assert judged is not None, "a run with a fit has a certificate"
    if judged.certificate.certified:
        return Outcome.RECOVERED
    if target is not None and judged.certificate.claim("C1").established:
        return Outcome.ON_TARGET
    if judged.select_error <= judged.exact:
        return _exact_but_not_established(judged, weak(trail))
    if memorised(judged.fit_error, judged.select_error):
        return Outcome.TOO_FEW_EXAMPLES
    best, large = trail.best, judged.select_error > judged.misfit
    if large and clear_view(trail, num):
        return (
            Outcome.TOO_FEW_EXAMPLES
        )  # few examples hide heads, and what hidden heads leave looks like noise
    if best is not None and best.verdict is Verdict.NOISE:
        return _noisy(judged)
    if large:
        return Outcome.NOT_ATTENTION
    if judged.apart < calibration.NEAR_HEADS:
        return Outcome.HEADS_INDISTINGUISHABLE
    ended = best is not None and best.stop == "noise"
    noticeable = judged.select_error >= calibration.NOTICEABLE
    return Outcome.NOT_ATTENTION if ended and noticeable else Outcome.NOT_ESTABLISHED


def _noisy(judged: Judged) -> Outcome:
    """Errors that nothing explains, and a claim at the accuracy of the data that is not established."""
    failed = {check.code for check in judged.certificate.checks if check.status is Status.FAILS}
    if "C2.rivals" in failed:
        return Outcome.HEADS_INDISTINGUISHABLE
    if failed & TOKENS_TIED:
        return Outcome.TOKENS_DEGENERATE
    near = judged.apart < calibration.NEAR_HEADS
    return Outcome.HEADS_INDISTINGUISHABLE if near else Outcome.BELOW_NOISE_FLOOR


def unmet_need(trail: Trail) -> Need | None:
    """Why there is no fit; None when there is one."""
    if isinstance(trail.signals, Need):
        return trail.signals
    if trail.best is not None:
        return None
    needs = list(trail.needs.values())
    misfits = [need for need in needs if need.outcome is Outcome.NOT_ATTENTION]
    asked = [need for need in needs if need.examples is not None]
    first = next(iter(needs), Need(Outcome.NOT_ESTABLISHED))
    if misfits:
        return misfits[-1]  # the one with the cause
    fewest = min((need.examples for need in asked if need.examples), default=None)
    return Need(first.outcome, fewest, evidence=first.evidence)


def clear_view(trail: Trail, num: int) -> int | None:
    """Examples that would show every head clearly, if a misfit without a known cause may come from too few of them."""
    best = trail.best
    wanted = None if best is None else best.clear_view
    known = trail.cause() not in (None, UNKNOWN)
    return wanted if wanted is not None and wanted > num and not known else None


def weak_remedy(stored: np.dtype, precision: np.dtype) -> str:
    """What to do about weak attention in outputs of this dtype that are exact to this precision.

    >>> weak_remedy(np.dtype(np.float32), np.dtype(np.float32)).split(",")[0]
    'record the outputs in float64'
    """
    if precision == np.float64:
        return LARGER
    if stored == np.float32:
        return f"record the outputs in float64, for float32 does not have the digits to tell the heads, or {LARGER}"
    return (
        "let the model compute in float64 throughout, for its float64 outputs are exact to float32 alone (some blocks take the "
        f"softmax in float32 whatever the dtype), or {LARGER}"
    )


def weak(trail: Trail) -> bool:
    """Whether attention moves the outputs so little that their digits may not determine it."""
    return isinstance(trail.signals, Signals) and trail.signals.nonlinear_share < calibration.ROUGH


def _exact_but_not_established(judged: Judged, weak: bool) -> Outcome:
    failed = {check.code for check in judged.certificate.checks if check.status is Status.FAILS}
    if "C2.rivals" in failed:
        return Outcome.HEADS_INDISTINGUISHABLE
    if failed & TOKENS_TIED:
        return Outcome.TOKENS_DEGENERATE
    if failed and failed <= TOO_FEW_UNITS:
        return Outcome.TOO_FEW_EXAMPLES
    if judged.apart < APART_LEAST:
        return Outcome.HEADS_INDISTINGUISHABLE
    unbound = "C3.bound" in failed and failed <= BOUND
    return Outcome.ATTENTION_TOO_WEAK if weak and unbound else Outcome.NOT_ESTABLISHED
