"""The wall: what each learner does on generic layers and on hard ones, as the number of heads grows.

- `wall_claim`: success rate and cost of spectral, sculpt, queries and Adam against m, on random layers and on parities
  (`long`: also square waves) of the same sizes and tokens (two ±1 tokens), five seeds a point with intervals.
- `statistical_claim`: queries of the statistical-query simulator against the bound, in the number of members and in the
  tolerance, with fitted exponents (theory: 1 and 2).
- `elimination_claim`: what is not statistical: GF(2) without and with flipped labels, and chosen single-bit queries.
- `dial_claim`: the way from a generic layer to a parity.

What each learner may spend, and when a layer counts as learned, is said in `_learners`. Certificates are counted beside
it: one on a layer that was not learned would be false.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, data, hard
from attnlearn.reproduce._cases import run_cases, share
from attnlearn.reproduce._learners import LEARNERS, SUCCESS, learn

DIM, LONG_DIM, SCULPT_DIM = 12, 16, 8
"""Sculpting needs 16 agreeing rows per entry of Theta: it gets a smaller dimension, and more examples."""
SEEDS = 5
FAMILIES: dict[str, Callable[[int, int, int], AttentionLayer]] = {
    "generic": lambda dim, heads, seed: AttentionLayer.random(heads, dim, scale=4.0, seed=seed),
    "parity": lambda dim, heads, seed: hard.parity(dim, heads, seed=seed),
    "rounding": lambda dim, heads, seed: hard.rounding(dim, heads, modulus=4, seed=seed),
}


def hardness(
    *,
    seed: int = 0,
    quick: bool = False,
    long: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    show: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """All claims; `quick` takes smaller sizes, `long` larger ones: more heads, both hard families, longer training.

    >>> sorted(CLAIMS)
    ['dial', 'elimination', 'statistical', 'wall']
    """
    options = {"seed": seed, "quick": quick, "long": long, "show": show}
    return {
        name: claim(checkpoint=None if checkpoint is None else os.path.join(checkpoint, name), **options)
        for name, claim in CLAIMS.items()
    }


def wall_claim(
    *, seed: int = 0, quick: bool = False, long: bool = False, checkpoint: Any = None, show: Any = None
) -> dict[str, Any]:
    """Success and cost of every learner by family and number of heads."""
    heads = (2, 4) if quick else (2, 4, 6, 8) if long else (2, 4, 6)
    families = ("generic", "parity", "rounding") if long else ("generic", "parity")
    dim = 8 if quick else LONG_DIM if long else DIM
    cases = wall_cases(heads, families, dim, seeds=range(seed, seed + (2 if quick else SEEDS)), long=long)
    rows = run_cases("wall", cases, learn_case, checkpoint=checkpoint, show=show)
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        key = row["case"]["family"], row["case"]["learner"], row["case"]["heads"]
        groups.setdefault(key, []).append(row["result"])
    order = {name: number for number, name in enumerate((*families, *LEARNERS))}
    points = [
        _point(*key, groups[key])
        for key in sorted(groups, key=lambda key: (order[key[0]], order[key[1]], key[2]))
    ]
    false = sum(bool(row["result"]["certified"] and row["result"]["error"] > SUCCESS) for row in rows)
    text = f"{len(rows)} runs, dimension {dim}, {false} certificates on layers that were not learned\n"
    return {"points": points, "false_certificates": false, "dim": dim, "text": text + _table(points, heads)}


def wall_cases(
    heads: tuple[int, ...], families: tuple[str, ...], dim: int, *, seeds: range, long: bool = False
) -> list[dict[str, Any]]:
    """Every learner on every family and number of heads, one seed of all of them before the second of any."""
    return [
        {
            "family": family,
            "heads": m,
            "dim": sculpted(m) if learner == "sculpt" else dim,
            "learner": learner,
            "long": long,
            "seed": number,
        }
        for number in seeds
        for m in heads
        for learner in LEARNERS
        for family in families
    ]


def sculpted(heads: int) -> int:
    """The dimension at which sculpting is tried: SCULPT_DIM, or as few as leave a parity some sets to choose from."""
    return max(SCULPT_DIM, heads + 4)


def learn_case(case: dict[str, Any]) -> dict[str, Any]:
    """One run of the wall."""
    layer = FAMILIES[case["family"]](case["dim"], case["heads"], case["seed"])
    return learn(layer, case["learner"], tokens=2, seed=case["seed"], long=case["long"])


def _point(family: str, learner: str, heads: int, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "family": family,
        "learner": learner,
        "heads": heads,
        **share(sum(result["error"] <= SUCCESS for result in found), len(found)),
        "error": [result["error"] for result in found],
        "outcomes": sorted({result["outcome"] for result in found}),
        "certified": sum(result["certified"] for result in found),
        "examples": float(np.median([result["examples"] for result in found])),
        "seconds": float(np.median([result["seconds"] for result in found])),
    }


def _table(points: list[dict[str, Any]], heads: tuple[int, ...]) -> str:
    """Successes of each learner by family and heads, as text."""
    lines = [f"{'family':<9} {'learner':<9}" + "".join(f" {f'm = {m}':>27}" for m in heads)]
    for family, learner in dict.fromkeys((point["family"], point["learner"]) for point in points):
        cells = []
        for point in points:
            if (point["family"], point["learner"]) == (family, learner):
                low, high = point["interval"]
                cells.append(
                    f"{point['successes']}/{point['runs']} [{low:.2f}, {high:.2f}] {point['seconds']:.1f} s"
                )
        lines.append(f"{family:<9} {learner:<9}" + "".join(f" {cell:>27}" for cell in cells))
    return "\n".join(lines)


def statistical_claim(
    *, seed: int = 0, quick: bool = False, long: bool = False, checkpoint: Any = None, show: Any = None
) -> dict[str, Any]:
    """Queries against the bound, and the fitted exponents in members and tolerance."""
    shapes = ((10, 4), (12, 4)) if quick else ((10, 4), (12, 4), (14, 4), (14, 6), (16, 6))
    cases = [
        {"dim": dim, "heads": m, "tolerance": tolerance, "seed": seed}
        for dim, m in (*shapes, *(((18, 8),) if long else ()))
        for tolerance in (0.04, 0.06, 0.08, 0.12, 0.16)
    ]

    def run(case: dict[str, Any]) -> dict[str, Any]:
        found = hard.simulate_queries(case["dim"], case["heads"], case["tolerance"], seed=case["seed"])
        return {
            "queries": found.queries,
            "bound": found.bound,
            "members": found.members,
            "left": len(found.left),
        }

    rows = run_cases("statistical", cases, run, checkpoint=checkpoint, show=show)
    points = [row["case"] | row["result"] for row in rows]
    used = [point for point in points if point["bound"] >= 10]
    design = np.array([[np.log(p["members"]), np.log(p["tolerance"]), 1.0] for p in used])
    slopes = np.linalg.lstsq(design, np.log([p["queries"] for p in used]), rcond=None)[0]
    ratios = [point["queries"] / point["bound"] for point in used]
    text = (
        f"queries ~ members^{slopes[0]:.2f} tolerance^{slopes[1]:.2f} (bound: 1 and 2); queries over bound "
        f"{min(ratios):.1f} to {max(ratios):.1f} in {len(used)} settings"
    )
    return {
        "points": points,
        "exponent_members": float(slopes[0]),
        "exponent_tolerance": float(slopes[1]),
        "ratios": [min(ratios), max(ratios)],
        "text": text,
    }


def elimination_claim(
    *, seed: int = 0, quick: bool = False, long: bool = False, checkpoint: Any = None, show: Any = None
) -> dict[str, Any]:
    """How often GF(2) finds the set, by share of flipped labels, and the chosen queries that always do."""
    draws = 10 if quick else 50
    heads, num, dim = 6, 200, 16
    rates = (0.0, 0.02, 0.05, 0.1, 0.2)
    found = {}
    for rate in rates:
        hits = 0
        for draw in range(seed, seed + draws):
            x = data.Boolean(2, dim).sample(num, seed=draw)
            y = hard.flip_labels(x, hard.parity(dim, heads, seed=draw)(x), rate, seed=draw)
            hits += hard.solve_parity(x, y).subset == hard.parity_subset(dim, heads, draw)
        found[str(rate)] = share(hits, draws)
    asked = sum(
        hard.query_parity(hard.parity(dim, heads, seed=s), dim) == hard.parity_subset(dim, heads, s)
        for s in range(seed, seed + draws)
    )
    rows = ", ".join(f"{entry['successes']}/{draws} at {rate}" for rate, entry in found.items())
    text = (
        f"elimination over GF(2) from {num} examples, by share of flipped labels: {rows}; "
        f"{dim - 1} chosen queries: {asked}/{draws}"
    )
    chosen = {"queries": dim - 1, **share(asked, draws)}
    return {"examples": num, "heads": heads, "by_rate": found, "chosen_queries": chosen, "text": text}


def dial_claim(
    *, seed: int = 0, quick: bool = False, long: bool = False, checkpoint: Any = None, show: Any = None
) -> dict[str, Any]:
    """Function error of the spectral route and of Adam on the way from a generic layer to a parity."""
    turns = (0.0, 1.0) if quick else (0.0, 0.25, 0.5, 0.75, 0.9, 1.0) if long else (0.0, 0.5, 1.0)
    cases = [
        {"hardness": turn, "learner": learner, "seed": seed + number}
        for learner in ("spectral", "Adam")
        for turn in turns
        for number in range(5 if long else 1 if quick else 2)
    ]

    def run(case: dict[str, Any]) -> dict[str, Any]:
        layer = hard.dial(DIM, 4, case["hardness"], seed=case["seed"])
        return learn(layer, case["learner"], tokens=2, seed=case["seed"])

    rows = run_cases("dial", cases, run, checkpoint=checkpoint, show=show)
    errors: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        case = row["case"]
        errors.setdefault(case["learner"], {}).setdefault(case["hardness"], []).append(row["result"]["error"])
    curves = {name: [float(np.median(found[turn])) for turn in turns] for name, found in errors.items()}
    cells = [f"{name} {', '.join(f'{value:.1e}' for value in curve)}" for name, curve in curves.items()]
    return {"hardness": list(turns), "curves": curves, "text": f"error at {turns}: " + "; ".join(cells)}


CLAIMS = {
    "wall": wall_claim,
    "statistical": statistical_claim,
    "elimination": elimination_claim,
    "dial": dial_claim,
}
