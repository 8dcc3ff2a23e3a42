"""The claims of the two papers, one line for every claim and seed; `render` makes the pages in pictures from them.

*steps*: sculpting with the paper's own steps beside ours, for one and two heads; *body*: the body in the plane of its heads, by round; *correlation*: the bias
of the paper's first sum against the dimension. The other claims are those of `attnlearn reproduce optimization`, whose
seeds and trials are inside.
"""

from __future__ import annotations

from typing import Any

from attnlearn import AttentionLayer, data
from attnlearn.reproduce._learning import correlation_error
from attnlearn.reproduce._optimization import CLAIMS
from attnlearn.reproduce._steps import sections, stepwise

SCALE, TOKENS, DIM, BUDGET = 4.0, 3, 8, 1_000_000
VARIANTS = {1: ("ours", "paper"), 2: ("ours", "sum", "span", "search")}
SEEDS = {"quick": 1, "bench": 5, "full": 5}


def cases(tier: str) -> list[dict[str, Any]]:
    """Five seeds of every claim about learning, then the claims about optimization."""
    seeds = range(SEEDS[tier])
    chosen: list[dict[str, Any]] = [
        {"claim": "steps", "heads": heads, "variant": variant, "seed": seed}
        for seed in seeds
        for heads, variants in VARIANTS.items()
        for variant in variants
    ]
    chosen += [
        {"claim": "correlation", "dim": dim, "scale": scale, "seed": seed}
        for seed in seeds
        for dim in (8, 16, 32, 64)
        for scale in (1.0, 4.0)
    ]
    chosen += [{"claim": "body", "seed": seed} for seed in seeds]
    return chosen + [{"claim": name, "seed": 0} for name in CLAIMS]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One case."""
    claim, seed = case["claim"], case["seed"]
    if claim in CLAIMS:
        return CLAIMS[claim](seed=seed)
    if claim == "correlation":
        layer = AttentionLayer.random(2, case["dim"], scale=case["scale"], seed=seed)
        return {"error": correlation_error(layer, data.Boolean(TOKENS, case["dim"]), seed)}
    heads = case.get("heads", 2)
    layer, source = AttentionLayer.random(heads, DIM, scale=SCALE, seed=seed), data.Boolean(TOKENS, DIM)
    if claim == "body":
        return {"sections": sections(layer, source, seed, BUDGET)}
    return stepwise(layer, source, case["variant"], seed, BUDGET)
