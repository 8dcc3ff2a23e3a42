"""The certificate of a training run, in three tiers that are never mixed.

- *a-priori* (codes A): the premises and the bound of the training theorem at this comparator. Usually wants
  astronomically many heads; the number is printed.
- *run-verified* (codes R): descent (i) and quasi-convexity (ii) at every step of this run, and the bound that
  follows without any other premise; for steps of other lengths than a constant times the gradient see `_any_steps.py`. The claim is established only if the bound says something: it is below the loss
  at the start and below the loss of guessing. `certified` means this tier.
- *measured* (codes M, `_held_out.py`): held-out error and loss with intervals.
- *generalization* (codes G): one draw of the stability bound and the replayed leave-one-out runs. Neither is a
  statement with confidence about this run, so they are shown beside the tiers and establish nothing.

Violations below rounding (`_calibration.ROUNDING_UNITS`) count as none, and are still added to the bound.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn.training import _bounds
from attnlearn.training._any_steps import any_checks, strides
from attnlearn.training._calibration import DIVERGED, INFORMATIVE, ROUNDING_UNITS
from attnlearn.training._evidence import ROUNDING_ASSUMED, RunEvidence, quasi_convexity
from attnlearn.training._problem import Problem


class RunVerdict(NamedTuple):
    """Violations of (i) and (ii) per step, which of them exceed rounding, the bound on the mean loss and that on the last."""

    descent: np.ndarray
    convexity: np.ndarray
    real: int
    bound: float
    mean: float
    last: float


def verify_run(run: RunEvidence, eps: float) -> RunVerdict:
    """Check (i) and (ii) at every step and evaluate the run-verified bound, which descent caps at L_0 + sum e_k."""
    loss, gain = run.loss, run.step * run.gradient_sq[:-1] / 2
    descent = np.maximum(loss[1:] - loss[:-1] + gain, 0)
    largest = np.maximum(loss[:-1], run.loss_star)
    convexity = quasi_convexity(run)
    gradient = np.sqrt(run.gradient_sq[:-1])
    reach = run.distance + run.step * np.cumsum(gradient)
    unit = ROUNDING_UNITS * eps
    real = int(np.sum(descent > unit * (loss[:-1] + gain)))
    real += int(np.sum(convexity > unit * (largest + gradient * reach)))
    num = len(loss) - 1
    bound = _bounds.run_bound(
        run.distance,
        run.distance_end,
        run.loss_star,
        loss[0],
        loss[-1],
        run.step,
        num,
        float(descent.sum() + convexity.sum()),
    )
    bound = min(bound, _bounds.descent_bound(loss[0], descent.sum()))
    # L_K <= L_k + the e_j after k, for every k: the last loss is at most the mean and all violations of descent.
    last = float(bound + descent.sum())
    return RunVerdict(descent, convexity, real, float(bound), float(loss[1:].mean()), last)


def bounds_along(run: RunEvidence, verdict: RunVerdict) -> np.ndarray:
    """The run-verified bound after 1, 2, ..., K steps, from the recorded inner products."""
    count = np.arange(1, len(run.loss))
    moved = np.cumsum(2 * run.step * run.inner[:-1] - run.step**2 * run.gradient_sq[:-1])
    violations = np.cumsum(verdict.descent + verdict.convexity)
    travel = 3 * moved / (4 * run.step * count)
    bound = 2 * run.loss_star + travel + (run.loss[0] - run.loss[1:]) / (2 * count) + 1.5 * violations / count
    return np.minimum(bound, _bounds.descent_bound(run.loss[0], np.cumsum(verdict.descent)))


def run_checks(problem: Problem, run: RunEvidence) -> tuple[Claim, list[Check], dict[str, Any]]:
    """The run-verified tier: one claim, its checks, its figures."""
    num = len(run.loss) - 1
    text = f"mean training loss over steps 1..{num}"
    guessing = _bounds.guessing_loss(float(np.mean(problem.y > 0)))
    if problem.optimizer == "adam":
        why = "the run-verified tier is about steps along the gradient, and Adam's are not"
        checks = [Check(code, Status.NOT_APPLICABLE, text=why) for code in ("R.violations", "R.bound")]
        return Claim.stated("R", f"{text}: not claimed ({why})", False, {"reason": why}), checks, {}
    if problem.optimizer != "gd":
        eta = strides(problem.optimizer, run.step, run.loss[:-1], run.gradient_sq[:-1])
        return any_checks(run, eta, guessing, float(np.finfo(problem.dtype).tiny))
    verdict = verify_run(run, float(np.finfo(problem.dtype).eps))
    known = min(float(run.loss[0]), guessing)
    checks = [
        Check.compare(
            "R.violations", verdict.real, 0, unit="steps", text="violations of descent or quasi-convexity"
        ),
        Check.compare("R.bound", verdict.mean, verdict.bound, unit="loss", text=f"{text} against its bound"),
        Check.compare(
            "R.last",
            float(run.loss[-1]),
            verdict.last,
            unit="loss",
            text="loss after the last step against its bound",
        ),
        Check.compare(
            "R.says",
            verdict.bound,
            (1 - INFORMATIVE) * known,
            unit="loss",
            text="bound, which must be below the loss at the start and below that of guessing,",
        ),
    ]
    established = all(check.status is Status.HOLDS for check in checks)
    figures = _run_figures(run, verdict, guessing)
    shown = f"{text} <= {verdict.bound:.4g} (measured {verdict.mean:.4g}, ratio {figures['ratio']:.3g})"
    if not established:
        figures["reason"] = _reason(verdict, known, "at the start" if known < guessing else "of guessing")
        shown = f"{figures['reason']} (measured {verdict.mean:.4g})"
    return Claim.stated("R", shown, established, figures, assumes=ROUNDING_ASSUMED), checks, figures


def _run_figures(run: RunEvidence, verdict: RunVerdict, guessing: float) -> dict[str, Any]:
    return {
        "bound": verdict.bound,
        "measured": verdict.mean,
        "last_bound": verdict.last,
        "last": float(run.loss[-1]),
        "ratio": verdict.bound / verdict.mean,
        "loss_start": float(run.loss[0]),
        "guessing": guessing,
        "violations": verdict.real,
        "violation_sum": float(verdict.descent.sum() + verdict.convexity.sum()),
        "loss_star": run.loss_star,
        "distance": run.distance,
        "distance_end": run.distance_end,
        "step": run.step,
    }


def _reason(verdict: RunVerdict, known: float, whose: str) -> str:
    """Why the run-verified tier claims nothing, in words."""
    if verdict.real:
        return f"{verdict.real} steps of the run break descent or quasi-convexity"
    return (
        f"the bound on the mean training loss says nothing: {verdict.bound:.3g} is not {100 * INFORMATIVE:g} % below "
        f"{known:.3g}, the loss {whose}"
    )


def _over(bound: float, measured: float | None) -> float | None:
    """The ratio of a bound to what it bounds; None where there is no positive measurement."""
    return bound / measured if measured is not None and measured > 0 else None


def _beside(ratio: float | None) -> str:
    if ratio is None:
        return "no positive measurement beside it"
    return f"{ratio:.3g} times the measurement" if math.isfinite(ratio) else "not finite"


def a_priori_checks(
    problem: Problem, run: RunEvidence, margin: float, head: float, value: float, gap: float | None
) -> tuple[list[Check], dict[str, Any]]:
    """The a-priori tier: P1-P3 as numbers, and the premises and bounds of both theorems beside measurements."""
    figures = {"B2": head, "B_Phi": value, "gamma": margin} | _a_priori_figures(problem, run, gap)
    expected = f"bound on the expected test minus train, if every premise held; {_beside(figures['generalization_ratio'])}"
    step = Check.compare("A.step", run.step, figures["step_limit"], text="step")
    if problem.optimizer != "gd":
        why = "the theorem is about gradient descent with a constant step"
        step = Check("A.step", Status.NOT_APPLICABLE, text=why)
    premises = [
        Check(
            "A.P3",
            Status.HOLDS if margin > 0 else Status.FAILS,
            margin,
            0.0,
            text="tangent margin gamma, attained on all examples,",
            at_most=False,
        ),
        Check.compare(
            "A.heads",
            problem.num_heads,
            figures["heads_needed"],
            unit="heads",
            text="number of heads",
            at_most=False,
        ),
        step,
    ]
    text = f"bound on the mean loss, if every premise held; {_beside(figures['ratio'])}"
    bound = Check("A.bound", Status.NOT_RUN, figures["bound"], unit="loss", text=text)
    if all(check.status is Status.HOLDS for check in premises):
        text = "mean training loss against the a-priori bound"
        bound = Check.compare("A.bound", figures["measured"], figures["bound"], unit="loss", text=text)
    checks = [
        Check("A.P1", Status.HOLDS, head, text="largest head norm at the start, B2"),
        Check("A.P2", Status.HOLDS, value, text="largest |Phi| at the start, B_Phi"),
        *premises,
        bound,
        Check("A.gap", Status.NOT_APPLICABLE, figures["generalization_bound"], unit="loss", text=expected),
    ]
    return checks, figures


def _a_priori_figures(problem: Problem, run: RunEvidence, gap: float | None) -> dict[str, Any]:
    """The constants, premises and bounds of both theorems, and what was measured of them."""
    heads = problem.num_heads
    num = len(run.loss) - 1
    norm = _bounds.norm_in_ball(run.comparator_norm, run.distance)
    beta1, beta2 = problem.constants(norm)
    rho = _bounds.smoothness(beta1, beta2, heads)
    needed = _bounds.heads_needed(beta2, run.distance)
    limit = _bounds.step_limit(rho, run.distance, num, run.loss_star, run.loss[0])
    constant = _bounds.expansion_constant(_bounds.heads_ratio(heads, beta2, run.distance))
    figures = {
        "R": problem.radius,
        "beta1": beta1,
        "beta2": beta2,
        "rho": rho,
        "heads_needed": needed,
        "step_limit": limit,
        "bound": _bounds.mean_loss_bound(run.distance, run.loss_star, run.step, num),
        "measured": float(run.loss[1:].mean()),
        "generalization_bound": _bounds.generalization_bound(beta1, run.distance, len(problem.x), constant),
    }
    figures["ratio"] = figures["bound"] / figures["measured"]
    figures["generalization_ratio"] = _over(figures["generalization_bound"], gap)
    return figures


def generalization_checks(
    problem: Problem, norm: float, distances: np.ndarray | None, replay: dict[str, Any], gap: float | None
) -> tuple[list[Check], dict[str, Any]]:
    """One draw of the stability bound, and what replayed leave-one-out runs measure of it."""
    figures: dict[str, Any] = dict(replay)
    checks = []
    if distances is None:
        why = "the recursion is for gradient descent, and can be switched off"
        checks.append(Check("G.draw", Status.NOT_RUN, text=why))
    else:
        mean = float(distances.mean())
        finite = float(distances.max()) < DIVERGED
        beta1, _ = problem.constants(norm + float(distances.max()))
        draw = float(2 * beta1 * mean) if finite else np.inf
        figures.update(draw=draw, mean_distance_bound=mean if finite else np.inf)
        figures["ratio"] = _over(draw, gap)
        text = "one draw of the stability bound on test minus train (not a statement with confidence); "
        text += _beside(figures["ratio"])
        checks.append(Check("G.draw", Status.NOT_APPLICABLE, draw, unit="loss", text=text))
    known = problem.config.radius is not None
    text = "R bounds every token of the distribution" + ("" if known else ": only this sample's is known")
    status = Status.HOLDS if known else Status.NOT_RUN
    checks.append(Check("G.radius", status, problem.radius, text=text))
    chosen = isinstance(problem.first_step, str)
    text = "the step does not depend on the sample" + (": it was computed from it" if chosen else "")
    checks.append(Check("G.step", Status.FAILS if chosen else Status.HOLDS, text=text))
    return checks, figures


def assemble(claims: list[Claim], *groups: list[Check]) -> Certificate:
    """The claims about new examples and about the run, the checks of all tiers."""
    return Certificate(tuple(claims), tuple(check for group in groups for check in group))
