"""Extraction with chosen queries: error, outcome and everything that was spent, per layer and oracle.

Every sequence counts: scale search, failed attempts, certification. `published_scalars` is 4 m d^2 - 2 m + 1, stated
for scalar answers, so it is to be compared with `scalars`; `unknowns` of a low-rank layer is the floor for scalars. Rows with
`before` run the code of that commit beside this one, in processes of their own, by CPU seconds.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, distance, load, recover
from attnlearn.extraction import extract
from benchmarks.before import ROOT, checkout, side

LAYERS = Path(__file__).parents[1] / "tests" / "layers"
TABLE = (
    {"dim": 64, "heads": 8, "rank": 8, "scale": 2.0},
    {"dim": 64, "heads": 16, "rank": 8, "scale": 8.0},
)
WANTED = {"float64": 1e-9, "float32": 1e-4}
RIVAL_TIMES = (2, 3, 4, 16)
"""Multiples of the tokens that `extract` spent, certification included, that `recover` gets until it reaches the error. A
quarter is decided at four; just above what it needs it takes longest, so the next one is plenty."""
RIVAL_LENGTH = 8
BEFORE = "5d67e92"
"""The last commit before long sequences and the shared kernel."""
BEFORE_MOST = {"bench": 1200, "full": 7200}
"""CPU seconds after which the code before is ended, so that the ratio is a lower bound."""
SCRIPT = """
import json, sys, time
import numpy as np
from attnlearn import AttentionLayer, distance
from attnlearn.extraction import extract
from benchmarks.extract import problem
case = json.loads(sys.argv[1])
extract(AttentionLayer.random(2, 4), 4, raise_on_failure=False, progress=False)  # imports are no part of the time
oracle, truth, dim = problem(case)
cpu, wall = time.process_time(), time.perf_counter()
found = extract(oracle, dim, seed=case["seed"], raise_on_failure=False, progress=False)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
error = None if found.layer is None else float(distance(found.layer.astype(np.float64), truth.astype(np.float64)).max)
print(json.dumps({"cpu": cpu, "wall": wall, "certified": found.certified, "outcome": found.outcome.name, "error": error,
    "sequences": found.stats["sequences"], "tokens": found.stats["tokens"],
    "phases": {phase.name: phase.seconds for phase in found.phases}}))
"""
REAL = (("sapiens-vh-layer0", 16), ("sapiens-vh-layer3", 16), ("rxnmapper-layer", 32))


def cases(tier: str) -> list[dict[str, Any]]:
    """The problems of a tier; every one holds its own seed."""
    small = {
        "layer": "random",
        "dim": 8,
        "heads": 6,
        "rank": None,
        "scale": 2.0,
        "dtype": "float64",
        "wanted": 1e-12,
    }
    d16 = {"layer": "random", "dim": 16, "rank": None, "scale": 2.0, "dtype": "float64", "wanted": 1e-9}
    edge = [{"layer": name, "dtype": "float64", "seed": 0} for name in EDGES]
    if tier == "quick":
        return [small | {"seed": 0}, d16 | {"heads": 4, "seed": 0}, *edge[:2]]
    seeds = range(20) if tier == "full" else range(3)
    table = [
        {"layer": "random", **row, "dtype": dtype, "wanted": WANTED[dtype]}
        for row in TABLE
        for dtype in WANTED
    ]
    growth = [
        {
            "layer": "random",
            "dim": dim,
            "heads": 4,
            "rank": 4,
            "scale": 2.0,
            "dtype": "float64",
            "wanted": 1e-9,
        }
        for dim in (16, 32, 64, 128, 256, 512)
    ]
    real = [{"layer": name, "rank": rank, "dtype": "float32", "wanted": 1e-4} for name, rank in REAL]
    rows = [case | {"seed": seed} for case in [small, *table] for seed in seeds]
    heads = range(1, 17) if tier == "full" else (1, 4, 8, 12, 16)
    rows += [d16 | {"heads": m, "seed": 0} for m in heads]
    rows += [case | {"seed": seed} for case in real for seed in (range(3) if tier == "full" else range(1))]
    rows += [
        {"layer": name, "rank": rank, "dtype": "float32", "wanted": 1e-4, "seed": 0, "rival": "recover"}
        for name, rank in REAL[:2]
    ]
    rows += [
        case | {"seed": 0, "before": BEFORE, "most": BEFORE_MOST[tier]}
        for case in (real[0], real[2], growth[-1])
    ]
    return rows + edge + [case | {"seed": 0} for case in (growth if tier == "full" else growth[:4])]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Extract one layer and compare it with the truth."""
    if "rival" in case:
        return random_examples(case)
    if "before" in case:
        return beside_before(case)
    oracle, truth, dim = problem(case)
    began = time.perf_counter()
    solution = extract(oracle, dim, seed=case["seed"], progress=False, raise_on_failure=False)
    seconds = time.perf_counter() - began
    error = None
    if solution.layer is not None and truth is not None:
        error = float(distance(solution.layer.astype(np.float64), truth.astype(np.float64)).max)
    figures = {
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "seconds": seconds,
        "error": error,
        "heads_found": None if solution.layer is None else solution.layer.num_heads,
        "rank_found": solution.stats.get("rank"),
        "noise": solution.stats["noise"],
        **{name: solution.stats[name] for name in ("sequences", "tokens", "scalars")},
        "by_phase": {phase.name: phase.evidence.get("sequences") for phase in solution.phases},
    }
    if truth is not None:
        m, d = truth.num_heads, truth.dim
        figures["published_scalars"] = 4 * m * d * d - 2 * m + 1
        figures["unknowns"] = unknowns(truth, case.get("rank"))
        figures["false_certificate"] = bool(
            solution.certified and (error is None or error > claimed(solution))
        )
    if "wanted" in case:
        figures["reached"] = bool(error is not None and error <= case["wanted"])
    return figures


def beside_before(case: dict[str, Any]) -> dict[str, Any]:
    """This code and that of the earlier commit on one problem; `speedup` is a lower bound where `capped` says so."""
    now = side(ROOT, SCRIPT, case)
    before = side(checkout(case["before"]), SCRIPT, case, case["most"])
    return {
        "before": before,
        "now": now,
        "speedup": before["cpu"] / now["cpu"],
        "capped": before.get("capped", False),
        "reached": bool(now["error"] is not None and now["error"] <= case["wanted"]),
    }


def random_examples(case: dict[str, Any]) -> dict[str, Any]:
    """How many times the tokens of `extract`, run first, `recover` needs in random sequences of 8 for the same error."""
    asked = run({name: value for name, value in case.items() if name != "rival"})
    tries = []
    for times in RIVAL_TIMES:
        tries.append({"times": times, **_recovered(case, times * asked["tokens"])})
        if tries[-1]["reached"]:
            break
    return {
        **tries[-1],
        "of_queries": {name: asked[name] for name in ("error", "sequences", "tokens", "seconds", "reached")},
        "not_enough": [entry for entry in tries if not entry["reached"]],
    }


def _recovered(case: dict[str, Any], tokens: int) -> dict[str, Any]:
    """`recover` from so many random tokens."""
    layer, truth, dim = problem(case)
    shape = (tokens // RIVAL_LENGTH, RIVAL_LENGTH, dim)
    x = np.random.default_rng(case["seed"]).standard_normal(shape).astype(case["dtype"])
    began = time.perf_counter()
    solution = recover(x, layer(x), seed=case["seed"], progress=False, raise_on_failure=False)
    error = None if solution.layer is None else float(distance(solution.layer, layer).max)
    return {
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "seconds": time.perf_counter() - began,
        "error": error,
        "sequences": len(x),
        "tokens": x.shape[0] * x.shape[1],
        "scalars": x.shape[0] * x.shape[1] * layer.out_dim,
        "unknowns": unknowns(truth, case["rank"]),
        "reached": bool(error is not None and error <= case["wanted"]),
    }


def claimed(solution: Any) -> float:
    """The parameter error, biases included, that the certificate's claim C3 allows."""
    return float(solution.certificate.claim("C3").value["bound"])


def unknowns(layer: AttentionLayer, rank: int | None) -> int:
    """Free numbers of a layer whose heads have this rank."""
    m, d, o = layer.num_heads, layer.dim, layer.out_dim
    if rank is None:
        return m * (d * d + d + d * o) + o
    return m * (rank * (2 * d - rank) + d + rank * (d + o - rank)) + o


def problem(case: dict[str, Any]) -> tuple[Any, AttentionLayer | None, int]:
    """The oracle, the true layer (None where there is none) and the token dimension."""
    if case["layer"] == "random":
        truth = AttentionLayer.random(
            case["heads"], case["dim"], rank=case["rank"], scale=case["scale"], seed=case["seed"]
        ).astype(case["dtype"])
        return truth, truth, case["dim"]
    if case["layer"] in EDGES:
        return EDGES[case["layer"]](AttentionLayer.random(4, 8, bias=True, seed=case["seed"]))
    truth = load(LAYERS / f"{case['layer']}.safetensors")
    return truth.astype(case["dtype"]), truth, truth.dim


def _duplicated(layer):
    truth = AttentionLayer(
        np.concatenate([layer.theta, layer.theta[:1]]),
        np.concatenate([layer.w, layer.w[1:2] + layer.w[2:3]]),
        np.concatenate([layer.query_bias, layer.query_bias[:1]]),
        layer.output_bias,
    )
    return truth, truth, 8


def _zero_head(layer):
    w = layer.w.copy()
    w[0] = 0
    truth = layer.replace(w=w)
    return truth, truth, 8


def _no_scores(layer):
    theta = layer.theta.copy()
    theta[0] = 0
    truth = layer.replace(theta=theta)
    return truth, truth, 8


def _causal(layer):
    truth = layer.replace(causal=True)
    return truth, truth, 8


def _rounded(decimals):
    return lambda layer: (lambda x: np.round(layer(x), decimals), layer, 8)


EDGES = {
    "causal": _causal,
    "not attention": lambda layer: (lambda x: x + layer(x), None, 8),
    "duplicated heads": _duplicated,
    "zero head": _zero_head,
    "head without scores": _no_scores,
    "rounded to 3 decimals": _rounded(3),
    "rounded to 6 decimals": _rounded(6),
    "more heads than outputs": lambda _: (AttentionLayer.random(6, 4), AttentionLayer.random(6, 4), 4),
}
