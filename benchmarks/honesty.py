"""Honesty first: how often a claim is false, and how often a right answer gets a certificate.

Pairs of a layer and data for the certifier alone, and problems for `recover`, `extract` and `compress` as a whole: the hostile ones of
old, those on tokens that no moment models, enemies that were made to earn a false claim, and layers that continuous tokens show.

A claim is false when it is established and the true layer, a rival with the same outputs or fresh examples break it, whether or not the
run is certified; a certificate is false when it is certified and any claim is. Power is the share of all problems that are
identifiable by construction and get a certificate: refusing early counts against it. They are always shown together, with
95 % Clopper-Pearson intervals.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy.stats import beta

from attnlearn import distance
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve.certification import certify
from tests.problems import (
    ALL,
    ENEMIES,
    GENERAL,
    HOSTILE,
    POSITIONS,
    SCULPTING,
    UNMODELLED,
    WITH_ERRORS,
    broken_claims,
)
from tests.problems._pairs import WRONG, right

TIERS = {"quick": (15, 36, 1), "bench": (60, 120, 24), "full": (1000, 300, 200)}
"""Problems on tokens that the moment models, pairs, and problems on tokens that it does not."""
EACH = {"quick": (0, 0, 0, 0, 0), "bench": (1, 1, 0, 1, 1), "full": (12, 12, 4, 27, 15)}
"""Problems of each kind of enemy, of each kind of continuous tokens, of each kind of sculpting, of each kind of outputs with errors, and
of each kind of positions."""
QUICK = (
    "antipodal", "displacements", "repeated", "tied and padded", "few free", "cancelling on signs", "upsampled",
    "giant document", "close heads", "oracle: window", "oracle: layer", "compress: uneven", "gaussian", "correlated",
    "layer norm", "padded", "noise: offset", "rounded: bfloat16", "structure: soft cap",
    "positions: rotary", "positions: table", "positions: rotary as plain", "positions: plain as rotary",
    "positions: wrong base", "positions: wrong window",
)  # fmt: skip
"""Kinds of which the quick tier runs one."""
FRESH = 100_000
"""Fresh examples that a claim is judged on."""
TRULY = 1e-6
"""Parameter error below which an answer counts as truly recovered."""


def cases(tier: str) -> list[dict[str, Any]]:
    """Pairs, then the problems of old with the keys they always had, then the newer kinds."""
    problems, pairs, unmodelled = TIERS[tier]
    wrong = list(WRONG)
    listed = [
        {"kind": "pair", "family": "right" if i % 3 == 0 else wrong[(i - i // 3 - 1) % len(wrong)], "seed": i}
        for i in range(pairs)
    ]
    for families, num in ((list(HOSTILE), problems), (list(UNMODELLED), unmodelled)):
        listed += [{"kind": "problem", "family": families[i % len(families)], "seed": i} for i in range(num)]
    for families, num in zip((ENEMIES, GENERAL, SCULPTING, WITH_ERRORS, POSITIONS), EACH[tier], strict=True):
        listed += [{"kind": "problem", "family": name, "seed": i} for i in range(num) for name in families]
    if tier == "quick":
        listed += [{"kind": "problem", "family": name, "seed": 0} for name in QUICK]
    return listed


PARTS = {
    "pair": "certifier alone",
    "old": "problems of old",
    "enemies": "problems made to earn a false claim",
    "continuous": "layers that continuous tokens show",
    "errors": "noise, rounding, and structure that is neither",
    "positions": "layers with positions, and what they are taken for",
}
"""Parts of the suite, and their names."""


def part(case: dict[str, Any]) -> str:
    """Which part of the suite a case belongs to."""
    family = case["family"]
    if case["kind"] == "pair":
        return "pair"
    if family in HOSTILE or family in UNMODELLED:
        return "old"
    if family in WITH_ERRORS:
        return "errors"
    if family in POSITIONS:
        return "positions"
    return "enemies" if family in ENEMIES else "continuous"


def run(case: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng([case["seed"], 77])
    return _pair(case, rng) if case["kind"] == "pair" else _problem(case, rng)


def _pair(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    pair = right(rng) if case["family"] == "right" else WRONG[case["family"]](rng)
    half = len(pair.x) // 2
    fit, held = Batch(pair.x[:half], pair.y[:half]), Batch(pair.x[half:], pair.y[half:])
    certificate = certify(pair.layer, held, fit, scale=example_scale(fit))
    broken = broken_claims(certificate, pair.layer, pair.truth, pair.fresh)
    return {
        "certified": certificate.certified,
        "broken": broken,
        "false": certificate.certified and bool(broken),
        "truly_right": pair.right,
    }


def _problem(case: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    problem = ALL[case["family"]](rng)
    started = time.perf_counter()
    solution = problem.run()
    seconds = time.perf_counter() - started
    broken, error = problem.broken(solution, FRESH), _error(problem, solution)
    return {
        "problem": problem.name,
        "outcome": solution.outcome.name,
        "outcome_right": solution.outcome.name in problem.right,
        "certified": solution.certified,
        "identifiable": problem.identifiable,
        "broken": broken,
        "false": solution.certified and bool(broken),
        "error": error,
        "truly_right": error is not None and error < TRULY and "RECOVERED" in problem.right,
        "diagnosis": (solution.stats.get("diagnosis") or {}).get("cause"),
        "seconds": round(seconds, 2),
        "certify_seconds": round(sum(p.seconds for p in solution.phases if "certify" in p.name), 3),
    }


def _error(problem: Any, solution: Any) -> float | None:
    """The parameter error as the library measures it; None where no layer or another mask was found, or none was looked for."""
    layer, truth = solution.layer, problem.truth
    if (
        layer is None
        or truth is None
        or layer.visible != truth.visible
        or solution.outcome.name == "COMPRESSED"
    ):
        return None
    return distance(layer, truth, support=solution.stats.get("support")).max


def interval(hits: int, total: int) -> tuple[float, float]:
    """95 % Clopper-Pearson interval of a share."""
    if not total:
        return 0.0, 1.0
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, total - hits + 1))
    high = 1.0 if hits == total else float(beta.ppf(0.975, hits + 1, total - hits))
    return low, high


def figures(results: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """False claims, false certificates, power and right outcomes among results: name, hits and cases of each.

    Lines of problems from before these said whether they are identifiable had another judge: they count in neither claims nor power.
    """
    judged = [result for result in results if "identifiable" in result or "outcome" not in result]
    able = [result for result in judged if result.get("identifiable", result["truly_right"])]
    ended = [result for result in results if "outcome_right" in result]
    return [
        ("false claims", sum(bool(result["broken"]) for result in judged), len(judged)),
        ("false certificates", sum(result["false"] for result in results), len(results)),
        ("power", sum(result["certified"] for result in able), len(able)),
        *(
            [("right outcomes", sum(result["outcome_right"] for result in ended), len(ended))]
            if ended
            else []
        ),
    ]


def summary(lines: list[dict[str, Any]]) -> str:
    """False claims, false certificates and power side by side, the kinds that are false, and the time that certifying takes."""
    text = []
    for name, words in PARTS.items():
        results = [line["result"] for line in lines if part(line["case"]) == name]
        for label, hits, total in figures(results):
            low, high = interval(hits, total)
            text.append(f"{words:<36} {label:<18} {hits}/{total}  [{100 * low:.2f} %, {100 * high:.2f} %]")
    timed = [line["result"] for line in lines if line["result"].get("certify_seconds")]
    whole = sum(result["seconds"] for result in timed)
    if whole:
        text.append(f"time in certify: {100 * sum(r['certify_seconds'] for r in timed) / whole:.0f} %")
    false: dict[str, list[str]] = {}
    for line in lines:
        if line["result"]["broken"]:
            false.setdefault(line["case"]["family"], []).append("+".join(line["result"]["broken"]))
    text += [
        f"false: {family} {len(broken)} ({', '.join(sorted(set(broken)))})"
        for family, broken in false.items()
    ]
    return "\n".join(text)
