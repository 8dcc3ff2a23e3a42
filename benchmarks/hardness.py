"""No certificate on a hard layer that was not learned: every learner on every hard family.

A certificate is *false* when an established claim is broken: by fresh examples (C1), or by the true layer (C2, C3).
With two tokens parameters are never determined, so C2 and C3 must not be established at all.
"""

from __future__ import annotations

from typing import Any

from attnlearn import AttentionLayer, data, distance, extract, hard, recover
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.reproduce._hardness import function_error

LEARNERS = ("spectral", "sculpt", "queries")
SEEDS = {"quick": 1, "bench": 3, "full": 10}


def cases(tier: str) -> list[dict[str, Any]]:
    families = [{"family": "parity", "dim": d, "heads": m} for d, m in ((8, 2), (8, 4), (12, 6))]
    families += [{"family": "rounding", "dim": 8, "heads": m} for m in (2, 4)]
    families += [{"family": "dial", "dim": 8, "heads": 4, "hardness": turn} for turn in (0.5, 0.8, 0.95)]
    families += [{"family": kind, "dim": 8, "heads": 3, "distance": 0.01} for kind in hard.DEGENERACIES]
    families = families[::4] if tier == "quick" else families
    return [
        family | {"learner": learner, "k": k, "seed": seed}
        for seed in range(SEEDS[tier])
        for family in families
        for k in ((2, 4) if "distance" not in family else (4,))
        for learner in LEARNERS
    ]


def make(case: dict[str, Any]) -> AttentionLayer:
    family, dim, heads, seed = case["family"], case["dim"], case["heads"], case["seed"]
    if family == "dial":
        return hard.dial(dim, heads, case["hardness"], seed=seed)
    if family in hard.DEGENERACIES:
        return hard.near_degenerate(family, dim, heads, case["distance"], seed=seed)
    return {"parity": hard.parity, "rounding": hard.rounding}[family](dim, heads, seed=seed)


def run(case: dict[str, Any]) -> dict[str, Any]:
    layer, seed = make(case), case["seed"]
    source = data.Boolean(case["k"], case["dim"])
    x = source.sample(8_000, seed=seed + 1)
    options: dict[str, Any] = {"seed": seed, "progress": False, "raise_on_failure": False}
    if case["learner"] == "queries":
        found = extract(layer, case["dim"], **options)
    elif case["learner"] == "sculpt":
        config = SculptConfig(num_examples=8_000, held_examples=8_000)
        found = recover(x, layer(x), method="sculpt", num_heads=layer.num_heads, config=config, **options)
    else:
        found = recover(x, layer(x), **options)
    fresh = source.sample(20_000, seed=seed + 2)
    error = 1.0 if found.layer is None else function_error(found.layer, layer, fresh)
    # Queries are of the learner's own choice, three tokens long; two tokens determine no parameters.
    comparable = case["k"] > 2 or case["learner"] == "queries"
    apart = distance(found.layer, layer).max if comparable and found.layer is not None else None
    return {
        "outcome": found.outcome.name,
        "certified": found.certified,
        "error": error,
        "distance": apart,
        "false_certificate": found.certified and (error > 1e-6 or apart is None or apart > _claimed(found)),
    }


def _claimed(solution: Any) -> float:
    return solution.certificate.claim("C3").value["bound"]


def summary(lines: list[dict[str, Any]]) -> str:
    text = []
    for learner in LEARNERS:
        found = [line["result"] for line in lines if line["case"]["learner"] == learner]
        certified, false = (
            sum(entry[name] for entry in found) for name in ("certified", "false_certificate")
        )
        text.append(f"{learner}: {len(found)} runs, {certified} certified, {false} false")
    return "\n".join(text)
