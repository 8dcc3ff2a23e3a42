"""Honesty first: how often a certificate is false, and how often a right answer gets one.

Two suites: pairs of a layer and data for the certifier alone, and the hostile problems for `recover` as a whole, on tokens that its
moment models and on others.
A certificate is false when any established claim is broken by the true layer or by fresh examples. Power is the share
of truly recovered layers that are certified. Both are always shown together, with 95 % Clopper-Pearson intervals.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from scipy.stats import beta

from attnlearn import distance, recover
from attnlearn.solve._held import Held, example_scale
from attnlearn.solve.certification import certify
from tests.problems import HOSTILE, UNMODELLED, broken_claims
from tests.problems._pairs import WRONG, right

TIERS = {"quick": (15, 36, 6), "bench": (60, 120, 24), "full": (1000, 300, 200)}
"""Problems on tokens that the moment models, pairs, and problems on tokens that it does not."""
TRULY = 1e-6
"""Parameter error below which an answer counts as truly recovered."""


def cases(tier: str) -> list[dict[str, Any]]:
    problems, pairs, unmodelled = TIERS[tier]
    wrong = list(WRONG)
    listed = [
        {"kind": "pair", "family": "right" if i % 3 == 0 else wrong[(i - i // 3 - 1) % len(wrong)], "seed": i}
        for i in range(pairs)
    ]
    for families, num in ((list(HOSTILE), problems), (list(UNMODELLED), unmodelled)):
        listed += [{"kind": "problem", "family": families[i % len(families)], "seed": i} for i in range(num)]
    return listed


def run(case: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng([case["seed"], 77])
    return _pair(case, rng) if case["kind"] == "pair" else _problem(case, rng)


def _pair(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    pair = right(rng) if case["family"] == "right" else WRONG[case["family"]](rng)
    half = len(pair.x) // 2
    fit, held = Held(pair.x[:half], pair.y[:half]), Held(pair.x[half:], pair.y[half:])
    certificate = certify(pair.layer, held, fit, scale=example_scale(fit))
    broken = broken_claims(certificate, pair.layer, pair.truth, pair.fresh)
    return {
        "certified": certificate.certified,
        "broken": broken,
        "false": certificate.certified and bool(broken),
        "truly_right": pair.right,
    }


def _problem(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    problem = (HOSTILE | UNMODELLED)[case["family"]](rng)
    started = time.perf_counter()
    solution = recover(problem.x, problem.y, raise_on_failure=False, progress=False, **problem.options)
    seconds = time.perf_counter() - started
    broken: list[str] = []
    error = None
    support = solution.stats.get("support")
    if solution.layer is not None:
        broken = broken_claims(solution.certificate, solution.layer, problem.truth, problem.fresh, support)
        if problem.truth is not None and problem.truth.causal == solution.layer.causal:
            error = distance(solution.layer, problem.truth, support=support).max
    jax.clear_caches()  # every problem has shapes of its own, and a process can map only so many compiled functions
    return {
        "problem": problem.name,
        "outcome": solution.outcome.name,
        "outcome_right": solution.outcome.name in problem.right,
        "certified": solution.certified,
        "broken": broken,
        "false": solution.certified and bool(broken),
        "error": error,
        "truly_right": error is not None and error < TRULY and "RECOVERED" in problem.right,
        "diagnosis": (solution.stats.get("diagnosis") or {}).get("cause"),
        "seconds": round(seconds, 2),
    }


def interval(hits: int, total: int) -> tuple[float, float]:
    """95 % Clopper-Pearson interval of a share."""
    if not total:
        return 0.0, 1.0
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, total - hits + 1))
    high = 1.0 if hits == total else float(beta.ppf(0.975, hits + 1, total - hits))
    return low, high


def summary(lines: list[dict[str, Any]]) -> str:
    """False certificates and power, side by side, for the certifier alone and for recover."""
    text = []
    for kind, name in (("pair", "certifier alone"), ("problem", "recover")):
        results = [line["result"] for line in lines if line["case"]["kind"] == kind]
        truly = [result for result in results if result["truly_right"]]
        for label, hits, total in (
            ("false certificates", sum(result["false"] for result in results), len(results)),
            ("power", sum(result["certified"] for result in truly), len(truly)),
        ):
            low, high = interval(hits, total)
            text.append(f"{name:<16} {label:<18} {hits}/{total}  [{100 * low:.2f} %, {100 * high:.2f} %]")
        if kind == "problem":
            good = sum(result["outcome_right"] for result in results)
            text.append(f"{name:<16} right outcomes     {good}/{len(results)}")
    return "\n".join(text)
