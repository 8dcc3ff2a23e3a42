"""Recovery from random examples, with the Adam student beside it where a case asks for it.

Each case holds its own seed and nothing is retried. Both sides get the same examples, dtype and threads; `seconds`
of recovery count everything from the arrays to the certificate, compilation included (the first case of a process). Beside
students the run to the function error 1e-6 is timed, as theirs is, once with compilation and once compiled. The error on
fresh examples is relative to the spread of the outputs about their mean.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, distance, load, recover
from benchmarks.cramer_rao import standard_errors

LAYERS = Path(__file__).parents[1] / "tests" / "layers"
TARGET = 1e-6
FRESH = 1_000
FIT_SHARE = 0.8
PATIENCE = 10.0
"""A run of the rival that takes this many times our seconds has lost and ends."""

D32 = {"layer": "random", "dim": 32, "k": 8, "heads": 8, "rank": 4, "scale": 2.0, "num": 20_000}
D64 = {"layer": "random", "dim": 64, "k": 8, "heads": 12, "rank": 8, "scale": 2.0, "num": 20_000}
D16 = {"layer": "random", "dim": 16, "k": 6, "heads": 4, "rank": 16, "num": 20_000}
WEAK = {"layer": "random", "dim": 256, "k": 8, "heads": 4, "rank": 64, "num": 20_000}
REAL = {"k": 8, "heads": 8, "rank": 16, "num": 20_000}
BASE = {
    "tokens": "gaussian",
    "seed": 0,
    "rival": False,
    "causal": False,
    "bias": False,
    "stored": "",
    "noise": 0.0,
}


def cases(tier: str) -> list[dict[str, Any]]:
    """Rows of the table of a tier, one dict per run."""
    easy = [D32, D32 | {"tokens": "boolean"}]
    if tier == "quick":
        return [BASE | row for row in [D16 | {"scale": 2.0}, *easy]]
    rows = easy + [D16 | {"scale": scale} for scale in (0.5, 2.0, 6.0)]
    rows += [D32 | {"bias": True, "causal": True}]
    inexact = [D32 | {"stored": stored} for stored in ("float32", "bfloat16")] + [D32 | {"noise": 1e-3}]
    words = [row | {"tokens": "words"} for row in (D16 | {"scale": 2.0}, D32, D32 | {"heads": 12})]
    antibody = [REAL | {"layer": f"sapiens-vh-layer{number}"} for number in (0, 3)]
    once = [D64, *antibody]
    if tier == "bench":
        return seeded(rows + inexact + words, 3) + seeded([D32 | {"rival": True}, *once], 1)
    halved = [D32 | {"num": num, "rival": True} for num in (2_500, 1_250, 625, 312, 156)]
    growing = [
        D32 | {"heads": m, "rank": 8, "num": 20_000 if m < 16 else 40_000} for m in (1, 2, 4, 8, 16, 24)
    ]
    once += [
        REAL | {"layer": "rxnmapper-layer", "rank": 32, "num": 40_000},
        REAL | {"layer": "sapiens-vh-layer0", "tokens": "normalized correlated"},
        REAL | {"layer": "sapiens-vh-layer0", "k": 128, "num": 400},
        *(WEAK | {"scale": scale} for scale in (0.3, 0.5, 0.8)),
    ]
    against = [row | {"rival": True} for row in (*easy, D64)]
    once += [row | {"rival": True} for row in antibody]
    return (
        seeded(rows, 20)
        + seeded([D64], 10)
        + seeded(inexact + words, 5)
        + seeded(against, 3)
        + seeded(halved + growing, 5)
        + seeded(once, 1)
    )


def seeded(rows: list[dict[str, Any]], seeds: int) -> list[dict[str, Any]]:
    """Every row with each of the first seeds."""
    return [BASE | row | {"seed": seed} for seed in range(seeds) for row in rows]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Recover one layer, judge it against the truth and on fresh examples, and train the rival if asked."""
    layer, x, y = problem(case)
    fresh = tokens(case, layer.dim, FRESH, np.random.default_rng([case["seed"], 2]))
    began = time.perf_counter()
    solution = recover(x, y, seed=case["seed"], raise_on_failure=False)
    result = {
        "seconds": time.perf_counter() - began,
        "outcome": solution.outcome.name,
        "certified": solution.certified,
    }
    result["phases"] = {phase.name: phase.seconds for phase in solution.phases}
    result["peak_gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    for name in ("examples_needed",):
        found = [phase.evidence[name] for phase in solution.phases if name in phase.evidence]
        result |= {name: found[-1]} if found else {}
    if solution.layer is not None:
        apart = distance(solution.layer.astype(layer.dtype), layer, support=solution.stats.get("support"))
        result |= {
            "heads_found": solution.layer.num_heads,
            "parameter_error": apart.max,
            "fresh_error": relative_error(solution.layer, layer, fresh),
        }
        if case["noise"] or case["stored"]:
            result |= against_allowed(case, layer, x, y, apart)
    return result | (against_students(case, layer, x, y, fresh) if case["rival"] else {})


def against_students(case: dict[str, Any], layer: AttentionLayer, x, y, fresh) -> dict[str, Any]:
    """Times to the target: ours, which is then certified (C1), and the students'; each with and without compilation."""
    import jax

    from benchmarks.rivals.adam import train_student

    ours = {}
    jax.clear_caches()
    for name in ("whole", "compiled"):
        began = time.perf_counter()
        found = recover(x, y, target=TARGET, seed=case["seed"], raise_on_failure=False)
        ours[name] = time.perf_counter() - began
    reached = found.layer is not None and relative_error(found.layer, layer, fresh) <= TARGET
    result: dict[str, Any] = {"target": ours | {"reached": reached}, "students": {}}
    for told, rank in {"heads": None, "heads and rank": case["rank"]}.items():
        jax.clear_caches()
        patience = PATIENCE * ours["whole"]
        student = train_student(
            layer, x, y, fresh, rank=rank, target=TARGET, seed=case["seed"], max_seconds=patience
        )
        if reached and student["reached"]:
            whole = student["seconds"] + student["compile_seconds"]
            student["over_ours"] = {
                "whole": whole / ours["whole"],
                "compiled": student["seconds"] / ours["compiled"],
            }
        result["students"][told] = student
    return result


def relative_error(found: AttentionLayer, truth: AttentionLayer, x: np.ndarray) -> float:
    """Root mean square error relative to the spread of the true outputs about their mean."""
    answer = truth(x)
    error = np.linalg.norm(found.astype(truth.dtype)(x) - answer)
    return float(error / np.linalg.norm(answer - answer.mean(axis=(0, 1))))


def against_allowed(case: dict[str, Any], layer: AttentionLayer, x, y, apart) -> dict[str, Any]:
    """Errors of Theta and W over what noise and the rounding of the answer allow (Cramer-Rao, all fit examples)."""
    noise = float(np.sqrt(np.mean((layer(x.astype(np.float64)) - y) ** 2)))
    least = standard_errors(layer, x[:4_000].astype(np.float64), noise, rank=case["rank"])
    shrink = np.sqrt(least.examples / (FIT_SHARE * len(x)))
    rounded = distance(layer.astype(x.dtype).astype(np.float64), layer)
    allowed = {
        "theta": np.hypot(
            shrink * np.max(least.theta / np.linalg.norm(layer.theta, axis=(1, 2))), rounded.theta
        ),
        "w": np.hypot(shrink * np.max(least.w / np.linalg.norm(layer.w, axis=(1, 2))), rounded.w),
    }
    return {f"{name}_over_allowed": float(getattr(apart, name) / value) for name, value in allowed.items()}


def problem(case: dict[str, Any]) -> tuple[AttentionLayer, np.ndarray, np.ndarray]:
    """The true layer and the examples that recovery is given."""
    rng = np.random.default_rng([case["seed"], 1])
    if case["layer"] == "random":
        layer = AttentionLayer.random(
            case["heads"],
            case["dim"],
            rank=case["rank"],
            scale=case["scale"],
            bias=case["bias"],
            seed=case["seed"],
            causal=case["causal"],
        )
    else:
        layer = load(LAYERS / f"{case['layer']}.safetensors", dtype=np.float64)
    x = tokens(case, layer.dim, case["num"], rng)
    y = layer(x)
    if case["noise"]:
        y = y + case["noise"] * y.std() * rng.standard_normal(y.shape)
    if case["stored"]:
        import ml_dtypes

        kind = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}[case["stored"]]
        x, y = x.astype(kind).astype(np.float32), y.astype(kind).astype(np.float32)
    return layer, x, y


def tokens(case: dict[str, Any], d: int, num: int, rng: np.random.Generator) -> np.ndarray:
    """Tokens of the case's kind; `words`: from a list of 3 d; `normalized correlated`: AR(0.7), covariance of condition 1e3, LayerNorm."""
    k = case["k"]
    if case["tokens"] == "words":
        words = np.random.default_rng([case["seed"], 3]).standard_normal((3 * d, d))
        return words[rng.integers(len(words), size=(num, k))]
    x = rng.standard_normal((num, k, d))
    if case["tokens"] == "boolean":
        return np.where(x > 0, 1.0, -1.0)
    if case["tokens"] == "normalized correlated":
        shape = np.random.default_rng([case["seed"], 3])
        for a in range(1, k):
            x[:, a] = 0.7 * x[:, a - 1] + np.sqrt(1 - 0.49) * x[:, a]
        axes = np.linalg.qr(shape.standard_normal((d, d)))[0]
        x = x @ (axes * np.sqrt(np.logspace(0, -3, d))) @ axes.T
        x -= x.mean(axis=2, keepdims=True)
        x /= x.std(axis=2, keepdims=True)
        x = x * np.exp(0.3 * shape.standard_normal(d)) + 0.5 * shape.standard_normal(d)
    return x
