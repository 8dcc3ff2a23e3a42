"""Does the advice of `conditions` come true? Sixty layers, each with a number of examples on offer; twenty for sculpting.

For every layer the advice is asked for first, with the weights and the tokens on offer; then the spectral route runs on
those examples and `extract` on the layer itself. A route *works* when it ends in a certificate. Sensitivity is the share
of working runs that the advice had called feasible, specificity the share of failed ones it had not. On some layers the
smallest number of examples that works is searched on a grid of factor 2, and compared with the number predicted. Sculpting
needs other layers (strong scores, one head or two) and more examples, and its runs take long: it has a table of its own, in
which half of the layers are meant to fail, and it is told the number of heads.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, conditions, data, extract, hard, recover

GRID = tuple(100 * 2**step for step in range(9))


def cases(tier: str) -> list[dict[str, Any]]:
    """Generic, biased, low-rank, weak, strong, near-degenerate and hard layers, with few or many examples."""
    found = population()
    return found[::9] if tier == "quick" else found + carved()


def population() -> list[dict[str, Any]]:
    """Sixty-four layers of few shapes, so that little is compiled; constants were set on seeds below 20, these are others."""
    base = {"kind": "generic", "dim": 8, "heads": 3, "k": 4, "tokens": "Gaussian", "scale": 2.0, "seed": 20}
    plenty = {"offered": 8000}
    rows = [base | {"seed": seed} | plenty for seed in range(20, 26)]
    rows += [base | {"heads": 2, "seed": seed} | plenty for seed in range(20, 22)]
    rows += [base | {"dim": 12, "heads": 4, "seed": seed} | plenty for seed in range(20, 22)]
    rows += [base | {"tokens": "Boolean", "seed": seed} | plenty for seed in range(20, 23)]
    rows += [base | {"seed": seed, "offered": num} for seed in (21, 22, 23) for num in (70, 141, 566)]
    rows += [base | {"seed": seed, "offered": 70} for seed in (24, 25)]
    rows += [base | {"heads": 2, "seed": seed, "offered": num} for seed in (21, 22) for num in (100, 283)]
    rows += [
        base | {"kind": "bias", "seed": seed, "offered": num}
        for seed, num in ((21, 8000), (22, 8000), (21, 141))
    ]
    rows += [
        base | {"scale": scale, "seed": 21} | plenty for scale in (0.02, 0.03, 0.1, 0.3, 5.0, 12.0, 40.0)
    ]
    distances = (0.3, 0.01, 0.001)
    rows += [base | {"kind": kind, "distance": t} | plenty for kind in hard.DEGENERACIES for t in distances]
    rows += [base | {"kind": "low-rank", "rank": 3, "seed": seed} | plenty for seed in (21, 22)]
    pairs = base | {"k": 2, "tokens": "Boolean"} | plenty
    rows += [pairs | {"kind": kind, "heads": m} for kind in ("parity", "rounding") for m in (2, 4)]
    rows += [pairs | {"k": 4, "kind": "parity", "heads": 4}]
    larger = {"dim": 16, "heads": 4, "k": 6}, {"dim": 24, "heads": 4}
    rows += [base | shape | {"offered": num} for shape in larger for num in (2000, 120)]
    searched = {(3, 566), (2, 283), (4, 2000)}
    return [
        row | {"search": row.get("distance") == 0.3 or (row["heads"], row["offered"]) in searched}
        for row in rows
    ]


def carved() -> list[dict[str, Any]]:
    """Layers for sculpting; the second half are meant to break a condition each, or have too little on offer."""
    base = {"route": "sculpt", "kind": "generic", "dim": 8, "heads": 1, "k": 3, "tokens": "Boolean"}
    one = base | {"scale": 4.0, "seed": 20, "offered": 60_000}
    two = one | {"heads": 2, "offered": 800_000}
    return [
        one,
        one | {"k": 4, "seed": 21},
        one | {"k": 4, "tokens": "Gaussian"},
        one | {"kind": "bias"},
        one | {"kind": "low-rank", "rank": 3},
        one | {"scale": 2.0},
        two,
        two | {"seed": 21},
        two | {"seed": 22},
        two | {"k": 4, "tokens": "Gaussian"},
        one | {"scale": 0.3},
        one | {"scale": 400.0},
        one | {"kind": "parity", "heads": 2, "k": 2},
        two | {"k": 2, "offered": 100_000},
        two | {"offered": 30_000},
        two | {"dim": 6},
        two | {"kind": "cancelling-projections", "distance": 1e-3, "offered": 200_000},
        two | {"kind": "tiny-head", "distance": 1e-3, "offered": 200_000},
        two | {"heads": 3, "k": 4, "offered": 200_000},
        two | {"dim": 9, "heads": 3, "offered": 200_000},
    ]


def make(case: dict[str, Any]) -> AttentionLayer:
    kind, dim, heads, seed = case["kind"], case["dim"], case["heads"], case["seed"]
    if kind == "parity":
        return hard.parity(dim, heads, seed=seed)
    if kind == "rounding":
        return hard.rounding(dim, heads, seed=seed)
    if kind in hard.DEGENERACIES:
        return hard.near_degenerate(kind, dim, heads, case["distance"], scale=case["scale"], seed=seed)
    return AttentionLayer.random(
        heads, dim, rank=case.get("rank"), scale=case["scale"], bias=kind == "bias", seed=seed
    )


def run(case: dict[str, Any]) -> dict[str, Any]:
    layer = make(case)
    source = getattr(data, case["tokens"])(case["k"], case["dim"])
    x = source.sample(case["offered"], seed=case["seed"] + 100)
    began = time.perf_counter()
    advice = conditions(layer, x, seed=case["seed"]).advice
    seconds = time.perf_counter() - began
    options: dict[str, Any] = {"seed": case["seed"], "progress": False, "raise_on_failure": False}
    if case.get("route") == "sculpt":
        learned = recover(x, layer(x), method="sculpt", num_heads=layer.num_heads, **options)
        return {"seconds": seconds, "sculpt": _compared(advice.of("sculpt"), learned)}
    learned, asked = recover(x, layer(x), **options), extract(layer, layer.dim, **options)
    result: dict[str, Any] = {
        "seconds": seconds,
        "advised": advice.route,
        "spectral": _compared(advice.of("recover"), learned),
        "queries": _compared(advice.of("extract"), asked) | {"used": asked.stats.get("sequences")},
    }
    if case["search"]:
        result["smallest"] = smallest(layer, source, case["seed"], advice.of("recover").needed)
    return result


def _compared(verdict: Any, solution: Any) -> dict[str, Any]:
    return {
        "feasible": verdict.feasible,
        "needed": verdict.needed,
        "reason": verdict.reason,
        "works": solution.certified,
        "outcome": solution.outcome.name,
    }


def smallest(layer: AttentionLayer, source: Any, seed: int, predicted: float | None) -> int | None:
    """The first size of the grid at which two of three draws are certified; None when there is none.

    Sizes below a sixth of the prediction are not tried: if the first one tried works, the prediction misses by more
    than 3 and is counted so.
    """
    for num in (num for num in GRID if num >= (predicted or 0) / 6):
        works = 0
        for draw in range(3):
            x = source.sample(num, seed=seed + 1000 * (draw + 1))
            found = recover(x, layer(x), seed=seed, progress=False, raise_on_failure=False)
            works += found.certified
            if works == 2 or draw - works == 1:
                break
        if works == 2:
            return num
    return None


def summary(lines: list[dict[str, Any]]) -> str:
    """Confusion matrices, sensitivity and specificity, and predicted over smallest number of examples."""
    text = []
    for route in ("spectral", "queries", "sculpt"):
        results = [line["result"][route] for line in lines if route in line["result"]]
        pairs = [(bool(result["feasible"]), result["works"]) for result in results]
        table = {key: sum(pair == key for pair in pairs) for key in [(a, b) for a in (True, False) for b in (True, False)]}  # fmt: skip
        yes, no = table[True, True], table[False, False]
        works, fails = yes + table[False, True], no + table[True, False]
        text += [
            f"{route}: {len(pairs)} layers, {fails} fail",
            f"               works  fails\n  advised yes  {yes:>5}  {table[True, False]:>5}",
            f"  advised no   {table[False, True]:>5}  {no:>5}",
            f"  sensitivity {_share(yes, works)}, specificity {_share(no, fails)}",
        ]
    ratios = [
        line["result"]["spectral"]["needed"] / line["result"]["smallest"]
        for line in lines
        if line["result"].get("smallest") and np.isfinite(line["result"]["spectral"]["needed"] or np.inf)
    ]
    if ratios:
        within = sum(1 / 3 <= ratio <= 3 for ratio in ratios)
        text.append(f"predicted over smallest examples: {min(ratios):.2f} to {max(ratios):.2f}, {within}/{len(ratios)} within 3x")  # fmt: skip
    asked = [line["result"]["queries"] for line in lines if "queries" in line["result"]]
    used = [entry for entry in asked if entry["works"]]
    if used:
        ratios = [entry["needed"] / entry["used"] for entry in used]
        text.append(
            f"predicted over used queries: {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} layers"
        )
    return "\n".join(text)


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} = {part / whole:.0%}" if whole else "no case"
