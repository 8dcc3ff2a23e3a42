"""Phase 1: noise, the sum of projections S and the output bias b from single tokens; is the layer causal?

A single token attends to itself, F(x) = x S + b, whatever the heads are. d + 1 tokens give S and b, a few more
give the noise of one scalar, which includes the rounding inside the oracle that repeats cannot show. The last
row of a two-token query sees both tokens; if the first row never does, the layer is causal. The last of three rows does not change when
the other two tokens are exchanged, unless scores depend on positions or a window hides a key.

Cost: d + 13 single tokens, 24 sequences for the repeats, 4 pairs, 4 triples twice. What can fail: answers that are not affine in
a single token, or that know where a token stands, are no plain attention layer (NOT_ATTENTION).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._errors import OracleError, require
from attnlearn.engine import Stop, Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._state import Inquiry, Problem, State, counts
from attnlearn.oracle import BudgetSpent, Noise

POSITIONS = (
    "scores depend on where tokens stand (where positions can be chosen, equal ones show Theta at offset 0)"
)


def measure(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """S, b, noise and causality."""
    inquiry = Inquiry(problem, state)
    repeats = _repeats(problem, inquiry)
    x, y = inquiry.ask(
        tools.rng("single").standard_normal((problem.dim + 1 + calibration.SURPLUS_TOKENS, 1, problem.dim))
    )
    total, bias, residual = affine_fit(x[:, 0], y[:, 0])
    size = float(np.abs(y).max())
    allowed = calibration.AFFINE_NOISE * repeats.level + calibration.AFFINE_RELATIVE * size
    evidence = {
        "noise": residual,
        "repeat_noise": repeats.sigma,
        "rounding": repeats.rounding,
        "rounding_step": repeats.step,
        "output_size": size,
    }
    if residual > allowed or not repeats.sigma <= calibration.AFFINE_RELATIVE * max(size, repeats.scale):
        raise Stop(
            "NOT_ATTENTION", {**evidence, "cause": "single tokens are not answered affinely"}, inquiry.kept()
        )
    # Where the W_i cancel in S single tokens show neither noise nor size; the repeated sequences do.
    machine = np.finfo(np.float64)
    noise = max(
        residual, repeats.level, calibration.EPSILONS * machine.eps * max(size, repeats.scale), machine.tiny
    )
    moved = exchanged(inquiry, tools, problem.dim)
    if moved > max(
        calibration.RANK_NOISE * 2 * noise * np.sqrt(problem.dim), calibration.AFFINE_RELATIVE * size
    ):
        raise Stop("NOT_ATTENTION", {**evidence, "exchanged": moved, "cause": POSITIONS}, inquiry.kept())
    causal = is_causal(inquiry, tools, total, bias, noise)
    evidence |= {"causal": causal, **counts(problem.oracle)}
    changes = {"repeat_noise": repeats.sigma, "rounding": repeats.rounding, "causal": causal}
    return inquiry.kept(noise=noise, total=total, bias=bias, **changes), evidence


def affine_fit(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients and constant of the least-squares fit, and the standard deviation of one scalar.

    >>> x = np.arange(6.0).reshape(6, 1)
    >>> total, bias, noise = affine_fit(x, 2 * x + 1)
    >>> round(float(total[0, 0]), 6), round(float(bias[0]), 6), noise < 1e-12
    (2.0, 1.0, True)
    """
    features = np.c_[x, np.ones(len(x))]
    coefficients, *_ = np.linalg.lstsq(features, y, rcond=None)
    residual = y - features @ coefficients
    freedom = max(1, len(x) - features.shape[1])
    return coefficients[:-1], coefficients[-1], float(np.sqrt(np.sum(residual**2) / (freedom * y.shape[1])))


def exchanged(inquiry: Inquiry, tools: Tools, dim: int) -> float:
    """By how much the last of three rows changes when the other two tokens change places, at small and at large tokens."""
    triples = (
        tools.rng("exchanged").standard_normal((4, 3, dim)) * np.array([0.1, 0.3, 1.0, 3.0])[:, None, None]
    )
    _, y = inquiry.ask(np.concatenate([triples, triples[:, [1, 0, 2]]]), keep=False)
    return float(np.abs(y[:4, 2] - y[4:, 2]).max())


def is_causal(inquiry: Inquiry, tools: Tools, total: np.ndarray, bias: np.ndarray, noise: float) -> bool:
    """Whether the first of two tokens never sees the second, at small and at large tokens."""
    pairs = tools.rng("causal").standard_normal((4, 2, len(total)))
    pairs *= np.array([0.1, 0.3, 1.0, 3.0])[:, None, None]
    x, y = inquiry.ask(pairs, keep=False)
    first, second = (np.abs(y[:, row] - x[:, row] @ total - bias).max() for row in (0, 1))
    return bool(first <= calibration.RANK_NOISE * 2 * noise * np.sqrt(len(total)) and second > 10 * first)


def _repeats(problem: Problem, inquiry: Inquiry) -> Noise:
    try:
        known = problem.oracle.dim
        require(
            known in (None, problem.dim),
            "dim",
            f"must be the oracle's token dimension ({known})",
            problem.dim,
        )
        return problem.oracle.noise(problem.dim)
    except BudgetSpent as error:
        raise Stop("BUDGET_SPENT", {"error": str(error), **counts(problem.oracle)}, inquiry.state) from error
    except OracleError as error:
        raise Stop("ORACLE_FAILED", {"error": str(error), **counts(problem.oracle)}, inquiry.state) from error
