"""Sculpting on random layers: the full route, its answer before refine, and random starts with the same refine.

`layer` cases are one random layer each; seeds are 0, 1, 2, ... in order. The answer before refine is the one that the
search leaves in its evidence (`SculptConfig(refine=False)` ends with it). The third column is what sculpting must beat:
refine from random layers with the true number of heads and the true norm, for the seconds that the full route took or
`MOST_STARTS` starts, whichever ends first. `target` cases ask for a function error and end when it is certified.
`memory` cases read every example of a large budget in a process of their own and measure its peak (`ru_maxrss`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from attnlearn import AttentionLayer, Solution, data, distance, recover
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.reproduce._learning import hull_error
from attnlearn.solve.refinement import RefineConfig, refine

# tokens, d, k, m, scale, budget of examples, seeds wanted
ROWS = [
    ("Boolean", 8, 4, 1, 4.0, 2e6, 20),
    ("Boolean", 12, 4, 1, 4.0, 2e6, 20),
    ("Boolean", 8, 4, 2, 4.0, 2e6, 20),
    ("Boolean", 8, 3, 2, 4.0, 2e6, 10),
    ("Boolean", 12, 6, 2, 4.0, 8e6, 10),
    ("Boolean", 16, 8, 2, 4.0, 4e6, 10),
    ("Boolean", 12, 4, 2, 4.0, 4e6, 4),
    ("Boolean", 12, 4, 2, 5.0, 4e6, 3),
    ("Boolean", 12, 4, 2, 6.0, 4e6, 3),
    ("Gaussian", 8, 4, 2, 4.0, 4e6, 10),
    ("Boolean", 9, 3, 3, 4.5, 3e7, 10),
    ("Boolean", 8, 4, 3, 4.0, 8e6, 3),
    # One line each against m, d and k, where the table has no neighbours.
    ("Boolean", 9, 3, 1, 4.5, 2e6, 3),
    ("Boolean", 9, 3, 2, 4.5, 2e6, 3),
    ("Boolean", 10, 4, 2, 4.0, 4e6, 3),
    ("Boolean", 12, 3, 2, 4.0, 4e6, 3),
]
TARGETS = (0.5, 0.2, 0.1, 0.05)
SEEDS = {"quick": 1, "bench": 3, "full": 20}
QUICK = {("Boolean", 8, 1), ("Boolean", 8, 2)}
MOST_STARTS = 20


def cases(tier: str) -> list[dict[str, Any]]:
    """The table of random layers, one seed of every row before the second of any; then targets and memory."""
    names = ("tokens", "d", "k", "m", "scale", "budget")
    chosen = []
    for *row, budget, wanted in ROWS:
        if tier == "quick" and ((row[0], row[1], row[3]) not in QUICK or row[2] != 4):
            continue
        case = dict(zip(names, (*row, int(budget))))
        chosen += [case | {"seed": seed} for seed in range(min(wanted, SEEDS[tier]))]
    chosen.sort(key=lambda case: case["seed"])
    if tier == "quick":
        return chosen
    base = {"tokens": "Boolean", "d": 8, "k": 4, "m": 2, "scale": 4.0, "budget": 2_000_000}
    chosen += [base | {"target": target, "seed": seed} for seed in range(3) for target in TARGETS]
    return [*chosen, base | {"kind": "memory", "budget": 20_000_000, "seed": 0}]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One case."""
    if case.get("kind") == "memory":
        return _in_own_process(case)
    layer, model = problem(case)
    solution, seconds = _timed(case, SculptConfig(num_examples=case["budget"]))
    full = _figures(solution, seconds, case)
    if solution.layer is not None:
        apart = distance(solution.layer, layer)
        full |= {"error": apart.max, "weights_error": max(apart.theta, apart.w)}
    if "target" in case:
        return {"full": full, "reached": solution.certificate.claim("C1").established}
    return {
        "full": full,
        "without_refine": _before_refine(solution, seconds, layer, model, case),
        "random_starts": _random_starts(layer, model, case, seconds),
    }


def problem(case: dict[str, Any]) -> tuple[AttentionLayer, Any]:
    """The layer and the data model of a case."""
    layer = AttentionLayer.random(case["m"], case["d"], scale=case["scale"], seed=case["seed"])
    return layer, getattr(data, case["tokens"])(case["k"], case["d"])


def _timed(case: dict[str, Any], config: SculptConfig) -> tuple[Solution, float]:
    layer, model = problem(case)
    started = time.perf_counter()
    solution = recover(
        model,
        layer,
        method="sculpt",
        config=config,
        seed=case["seed"],
        target=case.get("target"),
        raise_on_failure=False,
    )
    return solution, time.perf_counter() - started


def _figures(solution: Solution, seconds: float, case: dict[str, Any]) -> dict[str, Any]:
    """What the run says of itself."""
    found = {phase.name: phase.evidence for phase in solution.phases}
    rounds = found.get("carve", {}).get("rounds", [])
    figures: dict[str, Any] = {
        "seconds": round(seconds, 2),
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "examples": solution.stats.get("examples"),
        "condition": solution.stats.get("condition"),
        "phase_seconds": {phase.name: round(phase.seconds, 2) for phase in solution.phases},
        "rounds": [
            {name: entry[name] for name in ("tolerance", "examples", "slabs", "hull_error", "sum_error")}
            | {"width_across": max(entry["widths_across"]) / case["scale"]}
            for entry in rounds
        ],
    }
    if "slabs_needed" in solution.stats:
        figures |= {name: solution.stats[name] for name in ("slabs", "slabs_needed")}
    hull = _hull(solution)
    if "widths_across" in hull:
        figures["num_heads"] = hull["num_heads"]
        figures["width_across"] = max(hull["widths_across"]) / case["scale"]
    if "recheck" in found:
        figures |= {name: found["recheck"][name] for name in ("slabs", "proved", "violated", "tolerance")}
    return figures


def _before_refine(
    solution: Solution, seconds: float, layer: AttentionLayer, model: Any, case: dict[str, Any]
) -> dict[str, Any]:
    """How far the search's own answer is from the truth."""
    found = {phase.name: phase for phase in solution.phases}
    if "search" not in found:
        return {}
    answer = AttentionLayer(**found["search"].evidence["answer"])
    apart = distance(answer, layer)
    return {
        "seconds": round(seconds - found["refine"].seconds, 2),
        "weights_error": max(apart.theta, apart.w),
        "hull_error": hull_error(answer, layer, model.sample(20_000, seed=case["seed"])),
        "width_across": max(_hull(solution)["widths_across"]) / case["scale"],
    }


def _hull(solution: Solution) -> dict[str, Any]:
    """Evidence of the hull on which the answer lies: the search may have asked for one head more."""
    found = {phase.name: phase.evidence for phase in solution.phases}
    return found.get("search", {}).get("span", found.get("span", {}))


def _random_starts(layer: AttentionLayer, model: Any, case: dict[str, Any], seconds: float) -> dict[str, Any]:
    x = model.sample(40_000, seed=case["seed"])
    y = layer(x)
    errors: list[float] = []
    began = time.perf_counter()
    while len(errors) < MOST_STARTS and (not errors or time.perf_counter() - began < seconds):
        number = 10_000 * (case["seed"] + 1) + len(errors)
        start = AttentionLayer.random(case["m"], case["d"], scale=case["scale"], seed=number)
        found = refine(start, x, y, config=RefineConfig(seed=len(errors)))
        errors.append(distance(found.layer, layer).max)
    return {
        "error": min(errors),
        "starts": len(errors),
        "exact_starts": sum(error < 1e-6 for error in errors),
        "seconds": round(time.perf_counter() - began, 2),
    }


def _in_own_process(case: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.sculpt", json.dumps(case)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def read_everything(case: dict[str, Any]) -> dict[str, Any]:
    """Ask for more slabs than there are, so that the whole budget is read; peak memory of this process."""
    import resource

    config = SculptConfig(num_examples=case["budget"], slabs_per_unknown=1e9, max_rounds=1)
    solution, seconds = _timed(case, config)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"full": _figures(solution, seconds, case), "peak_gigabytes": peak}


def summary(lines: list[dict[str, Any]]) -> str:
    """The tables of docs/benchmarks.md."""
    from benchmarks.render._sculpt import tables

    return tables(lines)


if __name__ == "__main__":
    print(json.dumps(read_everything(json.loads(sys.argv[1]))))
