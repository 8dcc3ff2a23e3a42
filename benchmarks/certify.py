"""What refine and certify are made of, beside the code before a change: products, and the bounds of C3.

`product`: one product with the Gauss-Newton matrix in float32, and its CPU seconds over those of one large matrix product with
as many operations, measured on the same machine in the same process. `few` outputs are those of `combine_first`.
`bounds`: `smallest_singular` at the true layer, in a process of its own for each side: CPU seconds, products, and the bounds on
Theta and W per unit of relative output error. The earlier commit knows one way; the later one has a rough and a sharp one.
`checks`: a whole run of `recover` under a profiler: the share of its CPU seconds that the checks of what an enemy may do take
(general position of the tokens, the second opinion, copies among the sequences).
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, load, recover
from benchmarks.before import ROOT, checkout

BEFORE = "5d67e92"
"""The last commit whose certificate took Lanczos steps on all parameters and all outputs."""
ROWS = 8_192
CHECKS = ("look_at_tokens", "find_relatives", "sequence_names")
"""The functions that look for what would mislead a certificate; none of them calls another."""
SIDE = """
import inspect, json, sys, time
import numpy as np
from attnlearn import AttentionLayer, load
from attnlearn.solve.certification._conditioning import smallest_singular
case = json.loads(sys.argv[1])
rank = case["rank"]
if case["layer"] == "random":
    layer = AttentionLayer.random(case["heads"], case["dim"], rank=rank, scale=case["scale"], bias=True, seed=case["seed"])
else:
    layer = load(f"tests/layers/{case['layer']}.safetensors", dtype=np.float64)
x = np.random.default_rng([case["seed"], 0xCE]).standard_normal((case["num"], 8, layer.dim))
knows = "rough" in inspect.signature(smallest_singular).parameters
ways = {"rough": {"rough": True}, "sharp": {"rough": False}} if knows else {"before": {}}
lines = {}
for name, way in ways.items():
    began = time.process_time()
    found = smallest_singular(layer, x, rank=rank, **way)
    root = float(np.linalg.norm(getattr(found, "weights", np.ones(found.examples))))
    lines[name] = {
        "cpu": time.process_time() - began, "products": found.lanczos_steps, "examples": found.examples,
        "theta": float(found.theta.max() * root), "w": float(found.w.max() * root),
    }
print(json.dumps(lines))
"""


def cases(tier: str) -> list[dict[str, Any]]:
    """Products by dimension, and bounds for weak, ordinary and saturated heads."""
    product = {"kind": "product", "k": 8, "seed": 0}
    bounds = {"kind": "bounds", "layer": "random", "seed": 0, "num": 8_000}
    small = [bounds | {"dim": 32, "heads": 4, "rank": 8, "scale": scale} for scale in (0.2, 2.0, 6.0)]
    checks = [
        {
            "kind": "checks",
            "tokens": tokens,
            "layer": "random",
            "dim": dim,
            "heads": heads,
            "rank": rank,
            "num": num,
            "seed": 0,
        }
        for tokens, heads, dim, rank, num in (
            ("gaussian", 2, 6, 6, 3_000),
            ("gaussian", 4, 16, 16, 8_000),
            ("gaussian", 8, 64, 8, 20_000),
            ("normalised", 3, 16, 16, 6_000),
            ("words", 3, 16, 16, 6_000),
        )
    ]
    if tier == "quick":
        return [product | {"dim": 128, "heads": 8, "rank": 16, "few": True}, small[1], checks[0]]
    sizes = [(128, 8, 16), (256, 8, 32), (256, 4, 64), (512, 8, 64)]
    products = [
        product | {"dim": dim, "heads": heads, "rank": rank, "few": few}
        for dim, heads, rank in sizes
        for few in (True, False)
    ]
    antibody = [bounds | {"layer": f"sapiens-vh-layer{number}", "rank": 16} for number in (0, 3)]
    wide = [bounds | {"dim": 128, "heads": 8, "rank": 16, "scale": scale} for scale in (0.2, 2.0, 6.0)]
    sapiens = {
        "kind": "checks",
        "tokens": "gaussian",
        "layer": "sapiens-vh-layer0",
        "dim": 128,
        "num": 16_000,
        "seed": 0,
    }
    rows = [*products, *small, *antibody, *checks, sapiens]
    return rows if tier == "bench" else [*rows, *wide, bounds | {"layer": "rxnmapper-layer", "rank": 32}]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One row."""
    return {"product": _product, "bounds": _bounds, "checks": _checks}[case["kind"]](case)


def _least(work: Callable[[], Any], times: int = 5) -> float:
    """The least CPU seconds of several calls after a first one."""
    work()
    seconds = []
    for _ in range(times):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def _product(case: dict[str, Any]) -> dict[str, Any]:
    from attnlearn.solve._chunks import on_threads
    from attnlearn.solve._step import projected_product
    from attnlearn.solve.certification._point import prepare, size_of

    d, m, r, k = case["dim"], case["heads"], case["rank"], case["k"]
    out = 64 if case["few"] else d
    rng = np.random.default_rng([case["seed"], 0x9E])
    drawn = AttentionLayer.random(m, d, rank=r, scale=2.0, seed=case["seed"])
    layer = AttentionLayer(drawn.theta, drawn.w[:, :, :out])
    large = rng.standard_normal((1_024, 1_024)).astype(np.float32)
    with on_threads():
        x = rng.standard_normal((ROWS // k, k, d))
        point = prepare(layer, x, None, r, joint=True, sequences=len(x))
        t = rng.standard_normal(size_of(point)).astype(np.float32)
        seconds = _least(lambda: projected_product(point.at, point.by, t))
        speed = 2 * 1_024**3 / _least(lambda: large @ large)
    per_row = 4 * d * m * r + 4 * k * m * r + 2 * k * m * out + 2 * m * d * out
    operations = 2 * ROWS * per_row + 4 * out * (m * d) ** 2
    return {"cpu": seconds, "operations": operations, "speed": speed, "over": seconds * speed / operations}


def _bounds(case: dict[str, Any]) -> dict[str, Any]:
    lines = {}
    for tree in (checkout(BEFORE), ROOT):
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        command = [sys.executable, "-c", SIDE, json.dumps(case)]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
        lines |= json.loads(done.stdout.splitlines()[-1])
    return lines | {"cpu_ratio": lines["rough"]["cpu"] / lines["before"]["cpu"]}


def _checks(case: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng([case["seed"], 0xC5])
    x = rng.standard_normal((case["num"], 8, case["dim"]))
    if case["tokens"] == "normalised":
        x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    if case["tokens"] == "words":
        x = rng.standard_normal((40, case["dim"]))[rng.integers(0, 40, x.shape[:2])]
    if case["layer"] == "random":
        layer = AttentionLayer.random(
            case["heads"], case["dim"], rank=case["rank"], scale=2.0, seed=case["seed"]
        )
    else:
        layer = load(f"tests/layers/{case['layer']}.safetensors", dtype=np.float64)
    y = layer(x)
    profile = cProfile.Profile(time.process_time)
    solution = profile.runcall(recover, x, y, seed=case["seed"])
    found = pstats.Stats(profile)
    spent = sum(row[3] for (_, _, name), row in found.stats.items() if name in CHECKS)  # type: ignore[attr-defined]
    return {
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "cpu": found.total_tt,  # type: ignore[attr-defined]
        "checks": spent,
        "share": spent / found.total_tt,  # type: ignore[attr-defined]
    }


def summary(lines: list[dict[str, Any]]) -> str:
    """One row per case."""
    rows = []
    for line in lines:
        case, result = line["case"], line["result"]
        name = ", ".join(
            f"{key} {case[key]}"
            for key in ("layer", "tokens", "dim", "heads", "rank", "scale", "few")
            if key in case
        )
        if case["kind"] == "checks":
            rows.append(
                f"checks, {name}: {100 * result['share']:.0f} % of the {result['cpu']:.1f} CPU s of the run"
            )
            continue
        if case["kind"] == "product":
            rows.append(f"product, {name}: {result['over']:.2f} times a matrix product of as many operations")
            continue
        sides = [
            f"{side} {found['cpu']:.1f} s, {found['products']} products, Theta {found['theta']:.3g}, W {found['w']:.3g}"
            for side, found in result.items()
            if isinstance(found, dict)
        ]
        rows.append(f"bounds, {name}: {'; '.join(sides)}")
    return "\n".join(rows)
