"""The run-verified tier of steps along the gradient of any length: normalized, Polyak, decaying (not Adam).

With eta_k the length that multiplied grad L_k, the identity ‖theta_{k+1} - theta*‖^2 = ‖theta_k - theta*‖^2 - 2 eta_k <grad L_k,
theta_k - theta*> + eta_k^2 ‖grad L_k‖^2 and quasi-convexity L_k - L* <= <grad L_k, theta_k - theta*> + max(L_k, L*)/3 + f_k give

    (2/3) sum eta_k L_k <= (4/3) L* sum eta_k + (D^2 - D_K^2)/2 + (1/2) sum eta_k^2 ‖grad L_k‖^2 + sum eta_k f_k      (k = 0..K-1)

with every term on the right measured by the run (docs/guarantees.md, section 5). No descent is needed, and the bound is on the
mean loss weighted by eta_k. f_k >= 0 absorbs whatever is missing, so the inequality always holds: it is certified only if sum
eta_k f_k is at most `ABSORBED` of the right side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn._certificate import Check, Claim, Status
from attnlearn.training import _bounds
from attnlearn.training._calibration import ABSORBED, INFORMATIVE
from attnlearn.training._evidence import ROUNDING_ASSUMED, RunEvidence, quasi_convexity


class WeightedVerdict(NamedTuple):
    """The bound on the eta-weighted mean loss, that mean, and the share of the right side that violations make up."""

    bound: float
    mean: float
    absorbed: float


def strides(optimizer: str, step: float, loss: np.ndarray, gradient_sq: np.ndarray) -> np.ndarray:
    """eta_k of every step of a run whose trace this is.

    >>> strides("polyak", 1.0, np.array([0.5, 0.1]), np.array([1.0, 0.01])).tolist()
    [0.5, 1.0]
    """
    safe = np.maximum(gradient_sq, np.finfo(np.float64).tiny)
    if optimizer == "normalized":
        return step / np.sqrt(safe)
    if optimizer == "polyak":
        return np.minimum(step, loss / safe)
    if optimizer == "decaying":
        return step / np.sqrt(1 + np.arange(len(loss)))
    return np.full(len(loss), float(step))


def verify_any(run: RunEvidence, eta: np.ndarray, least: float = 0.0) -> WeightedVerdict:
    """Evaluate the inequality for a run with steps eta_k.

    A squared gradient below `least`, the smallest normal number of the run's dtype, is lost to underflow, and with it the length of the step:
    then nothing is measured, and the share that is absorbed counts as infinite.
    """
    loss, gradient_sq = run.loss[:-1], run.gradient_sq[:-1]
    absorbed = float(np.sum(eta * quasi_convexity(run)))
    right = _bounds.weighted_right_side(
        run.distance,
        run.distance_end,
        run.loss_star,
        float(eta.sum()),
        float(np.sum((eta * np.sqrt(gradient_sq)) ** 2)),
        absorbed,
    )
    bound = 1.5 * right / float(eta.sum())
    share = absorbed / right if right > 0 else np.inf if absorbed > 0 else 0.0
    share = np.inf if np.any(gradient_sq < least) else share
    return WeightedVerdict(bound, float(np.sum(eta * loss) / eta.sum()), share)


def any_checks(
    run: RunEvidence, eta: np.ndarray, guessing: float, least: float
) -> tuple[Claim, list[Check], dict[str, Any]]:
    """The run-verified tier of such a run: one claim, its checks, its figures."""
    num = len(eta)
    text = f"mean training loss over steps 0..{num - 1}, each weighted by its step length,"
    verdict, known = verify_any(run, eta, least), min(float(run.loss[0]), guessing)
    checks = [
        Check.compare("R.absorbed", verdict.absorbed, ABSORBED, text="share of the bound that absorbs violations"),
        Check.compare("R.bound", verdict.mean, verdict.bound, unit="loss", text=f"{text} against its bound"),
        Check.compare(
            "R.says", verdict.bound, (1 - INFORMATIVE) * known, unit="loss",
            text="bound, which must be below the loss at the start and below that of guessing,",
        ),
    ]  # fmt: skip
    established = all(check.status is Status.HOLDS for check in checks)
    figures: dict[str, Any] = {
        "bound": verdict.bound,
        "measured": verdict.mean,
        "ratio": verdict.bound / verdict.mean if verdict.mean > 0 else np.inf,
        "loss_start": float(run.loss[0]),
        "guessing": guessing,
        "absorbed": verdict.absorbed,
        "loss_star": run.loss_star,
        "distance": run.distance,
        "distance_end": run.distance_end,
        "step": run.step,
        "total_step": float(eta.sum()),
    }
    shown = f"{text} <= {verdict.bound:.4g} (measured {verdict.mean:.4g}, ratio {figures['ratio']:.3g})"
    if not established:
        figures["reason"] = (
            f"violations of quasi-convexity make up {100 * verdict.absorbed:.3g} % of the bound"
            if verdict.absorbed > ABSORBED
            else f"the bound on the weighted mean training loss says nothing: {verdict.bound:.3g} is not "
            f"{100 * INFORMATIVE:g} % below {known:.3g}"
        )
        shown = f"{figures['reason']} (measured {verdict.mean:.4g})"
    return Claim.stated("R", shown, established, figures, assumes=ROUNDING_ASSUMED), checks, figures


def bounds_along_any(run: RunEvidence, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bound and the weighted mean after 1, 2, ..., K steps, from the recorded inner products."""
    total = np.cumsum(eta)
    inner = np.cumsum(eta * run.inner[:-1])  # (D^2 - D_k^2)/2 + (1/2) sum eta^2 ‖grad L‖^2, by the identity
    right = 4 * run.loss_star * total / 3 + inner + np.cumsum(eta * quasi_convexity(run))
    return 1.5 * right / total, np.cumsum(eta * run.loss[:-1]) / total
