"""Sculpting on random layers: the full route, its answer before refine, and random starts with the same refine.

The third column is what sculpting must beat: refine from random layers with the true number of heads, as many starts
as fit into the seconds that the full route took. Every case is one random layer; seeds are 0, 1, 2, ... in order.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, data, distance, recover
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.reproduce._learning import hull_error
from attnlearn.solve._refine import RefineConfig, refine

# tokens, d, k, m, scale, budget of examples, seeds wanted
ROWS = [
    ("Boolean", 8, 4, 1, 4.0, 2e6, 20),
    ("Boolean", 12, 4, 1, 4.0, 2e6, 20),
    ("Boolean", 8, 4, 2, 4.0, 2e6, 20),
    ("Boolean", 8, 3, 2, 4.0, 2e6, 10),
    ("Boolean", 12, 6, 2, 4.0, 8e6, 10),
    ("Boolean", 16, 8, 2, 4.0, 8e6, 10),
    ("Boolean", 12, 4, 2, 5.0, 4e6, 10),
    ("Gaussian", 8, 4, 2, 4.0, 4e6, 10),
    ("Boolean", 9, 3, 3, 4.5, 3e7, 10),
    ("Boolean", 8, 4, 3, 4.0, 8e6, 3),
]
SEEDS = {"quick": 1, "bench": 3, "full": 20}
QUICK = {("Boolean", 8, 1), ("Boolean", 8, 2)}


def cases(tier: str) -> list[dict[str, Any]]:
    chosen = []
    for tokens, d, k, m, scale, budget, wanted in ROWS:
        if tier == "quick" and ((tokens, d, m) not in QUICK or k != 4):
            continue
        for seed in range(min(wanted, SEEDS[tier])):
            chosen.append(
                {
                    "tokens": tokens,
                    "d": d,
                    "k": k,
                    "m": m,
                    "scale": scale,
                    "budget": int(budget),
                    "seed": seed,
                }
            )
    # One seed of every row before the second of any: an unfinished table still has all its rows.
    return sorted(chosen, key=lambda case: case["seed"])


def run(case: dict[str, Any]) -> dict[str, Any]:
    layer = AttentionLayer.random(case["m"], case["d"], scale=case["scale"], seed=case["seed"])
    model = getattr(data, case["tokens"])(case["k"], case["d"])
    full = _recover(model, layer, case, refined=True)
    before = _recover(model, layer, case, refined=False)
    return {
        "full": full,
        "without_refine": before,
        "random_starts": _random_starts(model, layer, case, full["seconds"]),
    }


def _recover(model: Any, layer: AttentionLayer, case: dict[str, Any], refined: bool) -> dict[str, Any]:
    config = SculptConfig(num_examples=case["budget"], refine=refined)
    started = time.perf_counter()
    solution = recover(
        model, layer, method="sculpt", config=config, seed=case["seed"], raise_on_failure=False
    )
    figures: dict[str, Any] = {
        "seconds": round(time.perf_counter() - started, 2),
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "examples": solution.stats.get("examples"),
        "phase_seconds": {phase.name: round(phase.seconds, 2) for phase in solution.phases},
    }
    found = {phase.name: phase.evidence for phase in solution.phases}
    if "span" in found:
        figures["num_heads"] = found["span"]["num_heads"]
        figures["width_across"] = max(found["span"]["widths_across"]) / case["scale"]
    if "recheck" in found:
        figures |= {name: found["recheck"][name] for name in ("slabs", "proved", "violated", "tolerance")}
    if solution.layer is not None:
        apart = distance(solution.layer, layer)
        figures |= {"error": apart.max, "weights_error": max(apart.theta, apart.w)}
        if not refined:
            figures["hull_error"] = hull_error(solution.layer, layer, model.sample(20_000, seed=case["seed"]))
    return figures


def _random_starts(model: Any, layer: AttentionLayer, case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Refine from random layers with the true count and norm until the time of the full route is used up."""
    x = model.sample(40_000, seed=case["seed"])
    y = layer(x)
    best, starts, hits, used = np.inf, 0, 0, 0.0
    began = time.perf_counter()
    while starts == 0 or time.perf_counter() - began < seconds:
        start = AttentionLayer.random(
            case["m"], case["d"], scale=case["scale"], seed=10_000 * (case["seed"] + 1) + starts
        )
        found = refine(start, x, y, config=RefineConfig(seed=starts))
        error = distance(found.layer, layer).max
        hits, best, starts = hits + (error < 1e-6), min(best, error), starts + 1
        used = time.perf_counter() - began
    return {"error": float(best), "starts": starts, "exact_starts": int(hits), "seconds": round(used, 2)}


def summary(lines: list[dict[str, Any]]) -> str:
    rows: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        case = line["case"]
        rows[(case["tokens"], case["d"], case["k"], case["m"], case["scale"])].append(line["result"])
    table = [
        "| tokens | d | k | m | scale | cases | exact (1e-6) | m found | examples | seconds | Theta, W error"
        " before refine | hull error | width across | random starts exact |",
        "|" + "---|" * 14,
    ]
    for key, results in rows.items():
        full = [result["full"] for result in results]
        before = [result["without_refine"] for result in results]
        cells = [
            len(full),
            sum(entry.get("error", np.inf) < 1e-6 for entry in full),
            sum(entry.get("num_heads") == key[3] for entry in full),
            _median(full, "examples", "{:.2g}"),
            _median(full, "seconds", "{:.0f}"),
            _median(before, "weights_error", "{:.2%}"),
            _median(before, "hull_error", "{:.2%}"),
            _median(before, "width_across", "{:.2%}"),
            sum(result["random_starts"]["error"] < 1e-6 for result in results),
        ]
        table.append("| " + " | ".join(str(cell) for cell in (*key, *cells)) + " |")
    return "\n".join(table)


def _median(entries: list[dict[str, Any]], name: str, form: str) -> str:
    values = [entry[name] for entry in entries if entry.get(name) is not None]
    return form.format(float(np.median(values))) if values else "not reached"
