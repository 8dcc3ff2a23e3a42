"""Honesty of training: how often a claim of `train.fit` is false, and how often a good run gets its certificate.

The problems and the judge are those of tests/problems/_training.py: coin flips, contradictions, leaked and copied held-out
examples, and more. A claim is false when the judge's own forward pass or the truth of the problem contradicts it. The
intervals of claim M have a confidence of 95 % each, so their misses are counted apart. Power is the share of the
learnable problems that are certified. Counts have 95 % Clopper-Pearson intervals.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from benchmarks.honesty import interval
from tests.problems._training import TRAINING
from tests.problems._training_judge import judge, run_training

TIERS = {"quick": 1, "bench": 5, "full": 60}
"""Seeds of every family."""


def cases(tier: str) -> list[dict[str, Any]]:
    return [{"family": family, "seed": seed} for seed in range(TIERS[tier]) for family in TRAINING]


def run(case: dict[str, Any]) -> dict[str, Any]:
    problem = TRAINING[case["family"]](np.random.default_rng([case["seed"], 91]))
    started = time.perf_counter()
    if problem.refused:
        try:
            run_training(problem)
        except ValueError as error:
            return {"refused": str(error), "false": problem.refused not in str(error)}
        return {"refused": None, "false": True}
    solution = run_training(problem, case["seed"])
    seconds = time.perf_counter() - started
    judged = judge(problem, solution)
    jax.clear_caches()  # every problem has shapes of its own, and a process can map only so many compiled functions
    return judged._asdict() | {
        "false": bool(judged.broken),
        "learnable": problem.certified is True,
        "new_examples": solution.stats.get("new_examples"),
        "run": solution.certificate.claim("R").text if solution.certificate.claims else None,
        "seconds": round(seconds, 2),
    }


def counts(results: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """What is counted, how often it happened, and among how many."""
    learnable = [result for result in results if result.get("learnable")]
    missed = sum(len(result.get("missed", ())) for result in results)
    return [
        ("runs with a false claim", sum(result["false"] for result in results), len(results)),
        (
            "95 % intervals that miss, one in twenty allowed",
            missed,
            sum(result.get("intervals", 0) for result in results),
        ),
        ("power: learnable problems certified", sum(r["certified"] for r in learnable), len(learnable)),
    ]


def summary(lines: list[dict[str, Any]]) -> str:
    """False claims, missed intervals and power, side by side."""
    text = []
    for name, hits, total in counts([line["result"] for line in lines]):
        low, high = interval(hits, total)
        text.append(f"training  {name:<48} {hits}/{total}  [{100 * low:.2f} %, {100 * high:.2f} %]")
    return "\n".join(text)
