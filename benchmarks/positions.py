"""Layers with positions: how often they are found and certified, to which error, and in which time.

Rows are those of docs/positions.md: rotary layers as they are, grouped, with a window and with key biases; tables by offset and ALiBi's
slopes. `recover` gets the kind of positions by name and, for rotary ones, the number of heads; frequencies, tables and slopes
it finds. A window is given. Errors are the worst of Theta(offset) over all offsets seen, relative.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnlearn import distance, recover
from attnlearn.convert import value_groups
from tests.problems._positioned import RELATIVE, ROTARY, Shape, random_by_offset

SHAPE = {"heads": 4, "dim": 32, "width": 8, "tokens": 16, "base": 1e4, "num": 6000}
SEEDS = {"quick": 0, "bench": 1, "full": {"rotary": 20, "table": 20, "slopes": 20}}
WINDOW = 8
BASES = (1e5, 5e5, 1e6)
RECOVERED = 1e-6
"""Error of Theta(offset) and W below which a layer counts as recovered."""


def cases(tier: str) -> list[dict[str, Any]]:
    """One dict per layer, all kinds of the first seed before the second; then rotary layers with other usual bases."""
    seeds = SEEDS[tier]
    number = {kind: seeds if isinstance(seeds, int) else seeds.get(kind, 10) for kind in ROTARY + RELATIVE}
    listed = [
        SHAPE | {"kind": kind, "seed": seed}
        for seed in range(max(number.values()))
        for kind in ROTARY + RELATIVE
        if seed < number[kind]
    ]
    others = range(5) if tier == "full" else ()
    return listed + [
        SHAPE | {"kind": "rotary", "base": base, "seed": seed} for seed in others for base in BASES
    ]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Sample a layer and examples, recover it, and compare."""
    kind, rotary = case["kind"], case["kind"] in ROTARY
    rng = np.random.default_rng([case["seed"], 0x905])
    sizes = {name: case[name] for name in ("heads", "dim", "width", "tokens", "base")}
    layer = random_by_offset(kind, Shape(**sizes, window=WINDOW), rng)
    x = rng.standard_normal((case["num"], case["tokens"], case["dim"]))
    y = layer(x)
    mask: Any = layer.visible if kind == "window" else None
    began, spent = time.perf_counter(), time.process_time()
    solution = recover(
        x,
        y,
        positions="rotary" if rotary else "relative",
        num_heads=case["heads"] if rotary else None,
        causal=mask,
        seed=case["seed"],
        raise_on_failure=False,
    )
    found: dict[str, Any] = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - spent,
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "heads_found": solution.layer.num_heads,
    }
    if solution.layer.causal == layer.causal:
        apart = distance(solution.layer, layer, offsets=layer.visible.offsets(case["tokens"]))
        found |= {"error": max(apart.theta, apart.w), "bias_error": apart.query_bias}
        found["recovered"] = found["error"] < RECOVERED
    if kind == "grouped":
        found["groups"] = len(set(value_groups(solution.layer, RECOVERED)))
    return found


def summary(lines: list[dict[str, Any]]) -> str:
    """A line for each kind: how many were recovered and certified, and the median of the time."""
    text = []
    for kind, base in dict.fromkeys((line["case"]["kind"], line["case"]["base"]) for line in lines):
        own = [
            line["result"] for line in lines if (line["case"]["kind"], line["case"]["base"]) == (kind, base)
        ]
        right = sum(bool(result.get("recovered")) for result in own)
        certified = sum(result["certified"] for result in own)
        seconds = np.median([result["cpu_seconds"] for result in own])
        text.append(
            f"{kind:<9} base {base:g}: recovered {right}, certified {certified} of {len(own)}, {seconds:.0f} CPU s"
        )
    return "\n".join(text)
