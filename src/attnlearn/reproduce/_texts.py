"""One line of words for every claim about optimization: the numbers that a reader looks for first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def describe(name: str, claim: dict[str, Any]) -> str:
    """The claim in words; its own `text` where it has one.

    >>> describe("wall", {"text": "30 runs"})
    '30 runs'
    """
    return claim["text"] if "text" in claim else _TEXTS[name](claim)


def _heads(claim: dict[str, Any]) -> str:
    parts = []
    for rule, words in (("common", "one step for all"), ("sqrt", "step growing like sqrt(H)")):
        runs = [[s if s >= 0 else np.inf for s in row[rule]["steps_to_target"]] for row in claim["rows"]]
        steps = ", ".join(
            f"{row['heads']}: {_steps(float(np.median(run)))}" for row, run in zip(claim["rows"], runs)
        )
        parts.append(f"{words}: {steps}")
    rows = claim["rows"]
    gaps = ", ".join(f"{row['heads']}: {np.median(row['common']['gap']):.2g}" for row in rows)
    slack = ", ".join(f"{row['heads']}: {row['bound_over_measured']:.2g}" for row in rows)
    parts.append(
        f"test minus train loss (one step for all): {gaps}; run-verified bound over measured: {slack}"
    )
    return f"median steps to loss {claim['target']} by number of heads, {'; '.join(parts)}"


def _steps(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "not reached"


def _examples(claim: dict[str, Any]) -> str:
    gaps = ", ".join(f"{n}: {np.mean(gap):.3g}" for n, gap in zip(claim["sizes"], claim["gaps"]))
    if claim.get("slope") is None:
        return f"test minus train loss by n, {gaps}; slope not fitted"
    low, high = claim["interval"]
    return (
        f"test minus train loss by n, {gaps}; slope {claim['slope']:.2f} [{low:.2f}, {high:.2f}] (theory: -1)"
    )


def _starts(claim: dict[str, Any]) -> str:
    rows = [
        f"{name}: P1 {row['P1']:.1%}, P2 {row['P2']:.1%}, P3 {row['P3']:.1%}, median margin {row['gamma'][2]:.3g}"
        + (
            ""
            if row["gamma_above_bound"] is None
            else f" (above the bound in {row['gamma_above_bound']:.1%})"
        )
        + f", L* <= {claim['target_loss']:g} in {row['loss_star_below_target']:.1%}"
        for name, row in claim["starts"].items()
    ]
    return f"{claim['draws']} draws, explicit lower bound of the margin {claim['margin_bound']:.3g}; {'; '.join(rows)}"


def _attention(claim: dict[str, Any]) -> str:
    shares = ", ".join(f"{row['steps']}: {np.mean(row['share']):.2f}" for row in claim["rows"])
    return f"share of attention on relevant tokens by steps, {shares} (uniform {claim['uniform_share']:.2f})"


def _unattained(claim: dict[str, Any]) -> str:
    starts = ", ".join(f"{name} {np.median(found):.2g}" for name, found in claim["starts"].items())
    looking = ", ".join(f"{name}: {np.median(found):.2g}" for name, found in claim["looking"].items())
    return (
        f"median tangent margin at the starts, {starts}; at weights that score relevant keys higher, by score, {looking} "
        f"(the read-out alone: {claim['uniform']:.2g} at uniform attention, {claim['limit']:.2g} at full attention)"
    )


def _protocol(claim: dict[str, Any]) -> str:
    parts = []
    for rule, words in (("constant", "step 1.0"), ("sqrt", "step sqrt(H)")):
        for name in ("test_loss", "attention"):
            told = ", ".join(f"{row['heads']}: {np.mean(row[rule][name]):.2g}" for row in claim["rows"])
            parts.append(f"{name.replace('_', ' ')} at {words}: {told}")
    return f"zero start, {claim['trials']} trials of {claim['steps']} steps, by number of heads, {'; '.join(parts)}"


def _planted(claim: dict[str, Any]) -> str:
    parts = []
    for name in ("test_loss", "test_error"):
        told = ", ".join(f"{row['heads']}: {np.mean(row[name]):.2g}" for row in claim["rows"])
        parts.append(f"{name.replace('_', ' ')}: {told}")
    return f"n = {claim['examples']}, {claim['trials']} trials of {claim['steps']} steps, by number of heads; {'; '.join(parts)}"


def _bound(claim: dict[str, Any]) -> str:
    ratios = ", ".join(f"{ratio:.2f}" for ratio in claim["ratios"])
    return f"run-verified bound over measured mean of {len(claim['ratios'])} runs {ratios}; violations {sum(claim['violations'])}"


_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "heads": _heads,
    "examples": _examples,
    "starts": _starts,
    "attention": _attention,
    "unattained": _unattained,
    "protocol": _protocol,
    "planted": _planted,
    "bound": _bound,
}
