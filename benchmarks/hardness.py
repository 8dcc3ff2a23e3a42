"""The wall against the number of heads, and no certificate on a hard layer that was not learned.

`wall` cases are those of `attnlearn reproduce hardness`: every learner on random layers and on parities of two ±1 tokens.
*Learned* is a relative function error of at most 0.1 on fresh examples. `family` cases put the three learners that can
certify on every hard family, with two tokens and with four, one layer and 8,000 examples each. A certificate is *false* when the layer
was not learned, or when an established claim is broken: by fresh examples (C1), or by the true layer (C2, C3). With two
tokens parameters are never determined, so C2 and C3 must not be established at all.
"""

from __future__ import annotations

from typing import Any

from attnlearn import AttentionLayer, data, distance, extract, hard, recover
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.reproduce._hardness import DIM, SEEDS, learn_case, wall_cases
from attnlearn.reproduce._learners import function_error

CERTIFIERS = ("spectral", "sculpt", "queries")
EXACT = 1e-6
"""Largest function error on fresh examples beside a certificate; certified answers are exact to rounding."""


def cases(tier: str) -> list[dict[str, Any]]:
    heads, seeds = {"quick": ((2,), 1), "bench": ((2, 4), 1), "full": ((2, 4, 6), SEEDS)}[tier]
    wall = wall_cases(heads, ("generic", "parity"), DIM, seeds=range(seeds))
    families = [{"family": "parity", "dim": d, "heads": m} for d, m in ((8, 2), (8, 4))]
    families += [{"family": "rounding", "dim": 8, "heads": m} for m in (2, 4)]
    families += [{"family": "dial", "dim": 8, "heads": 4, "hardness": turn} for turn in (0.5, 0.8, 0.95)]
    families += [{"family": kind, "dim": 8, "heads": 3, "distance": 0.01} for kind in hard.DEGENERACIES]
    families = families[::4] if tier == "quick" else families
    return [case | {"what": "wall"} for case in wall] + [
        family | {"what": "family", "learner": learner, "k": k, "seed": 0}
        for family in families
        for k in ((2, 4) if "distance" not in family else (4,))
        for learner in CERTIFIERS
    ]


def make(case: dict[str, Any]) -> AttentionLayer:
    family, dim, heads, seed = case["family"], case["dim"], case["heads"], case["seed"]
    if family == "dial":
        return hard.dial(dim, heads, case["hardness"], seed=seed)
    if family in hard.DEGENERACIES:
        return hard.near_degenerate(family, dim, heads, case["distance"], seed=seed)
    return {"parity": hard.parity, "rounding": hard.rounding}[family](dim, heads, seed=seed)


def run(case: dict[str, Any]) -> dict[str, Any]:
    if case["what"] == "wall":
        found = learn_case(case)
        return found | {"false_certificate": found["certified"] and found["error"] > EXACT}
    return _family(case)


def _family(case: dict[str, Any]) -> dict[str, Any]:
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
        found = recover(x, layer(x), method="moment", **options)
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
        "false_certificate": found.certified and (error > EXACT or apart is None or apart > _claimed(found)),
    }


def _claimed(solution: Any) -> float:
    return solution.certificate.claim("C3").value["bound"]


def summary(lines: list[dict[str, Any]]) -> str:
    """The tables of docs/benchmarks.md."""
    from benchmarks.render._hardness import tables

    return tables(lines)
