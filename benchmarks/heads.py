"""Examples and time against the number of heads: how many random examples a certified recovery takes.

For every layer the number of examples grows by the square root of two, from six equations per unknown and 113 sequences (a
certificate wants 200), until `recover` certifies what it found. `seconds` are those of that last run, from the arrays to the
certificate; the attempts before it, with the number of examples that they asked for, are kept as evidence.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, distance, recover

LAYER = {"dim": 32, "k": 8, "rank": 8, "scale": 2.0}
HEADS = (1, 2, 4, 8, 16, 24)
SEEDS = {"quick": 0, "bench": 1, "full": 3}
FIRST_EQUATIONS = 6.0
FIRST_EXAMPLES = 113
MOST = 40_000


def cases(tier: str) -> list[dict[str, Any]]:
    """One dict per layer."""
    heads = HEADS[:4] if tier == "bench" else HEADS
    return [LAYER | {"heads": m, "seed": seed} for seed in range(SEEDS[tier]) for m in heads]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """The first number of examples that is certified, what it took, and how the attempts before ended."""
    m, d, k, rank = case["heads"], case["dim"], case["k"], case["rank"]
    layer = AttentionLayer.random(m, d, rank=rank, scale=case["scale"], seed=case["seed"])
    x = np.random.default_rng([case["seed"], 1]).standard_normal((MOST, k, d))
    y = layer(x)
    unknowns = m * (2 * rank * (2 * d - rank) + d) + d
    attempts: list[dict[str, Any]] = []
    num = max(FIRST_EXAMPLES, FIRST_EQUATIONS * unknowns / (k * d))
    while num <= MOST:
        began = time.perf_counter()
        used = round(num)
        solution = recover(x[:used], y[:used], seed=case["seed"], raise_on_failure=False)
        seconds = time.perf_counter() - began
        if solution.certified:
            return {
                "examples": used,
                "seconds": seconds,
                "unknowns": unknowns,
                "equations_per_unknown": used * k * d / unknowns,
                "heads_found": solution.layer.num_heads,
                "parameter_error": distance(solution.layer, layer).max,
                "attempts": attempts,
            }
        attempts.append(
            {
                "examples": used,
                "seconds": seconds,
                "outcome": solution.outcome.name,
                "asked": solution.stats.get("examples_needed"),
            }
        )
        num *= np.sqrt(2)
    return {"unknowns": unknowns, "attempts": attempts}
