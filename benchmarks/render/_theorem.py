"""What the result lines say of the first paper's theorem and of its lower bounds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from attnlearn.reporting import Lines, Series
from attnlearn.reproduce._learners import SUCCESS
from benchmarks.render._claims import Claim, judged, not_run, results, told
from benchmarks.render._lines import Suite
from benchmarks.render._sculpt import EXACT, fitted, grown


def whole(suites: dict[str, Suite], heads: int) -> Claim:
    """The paper's steps from end to end."""
    steps = {1: "the paper's own steps", 2: "sculpting from the paper's first sum"}[heads]
    text, place = f"{steps}, m = {heads}, d = 8, a million examples: a layer is learned", "theorem"
    runs = results(suites, "papers", claim="steps", heads=heads, variant={1: "paper", 2: "sum"}[heads])
    if not runs:
        return not_run(text, place)
    done = [r["weights_error"] for r in runs if "weights_error" in r]
    errors = f", error {told(done, '{:.2%}')}" if done else ""
    ends = sorted({f"{r['outcome']} at {r['ended_at']}" for r in runs if "ended_at" in r})
    measured = (
        f"{len(done)} of {len(runs)} end in an answer{errors}"
        + (f"; the others in {', '.join(ends)}" if ends else "")
        + "."
    )
    measured += (
        " This contradicts the claim at this size only: the theorem speaks of large k d." if not done else ""
    )
    return Claim(text, place, judged(len(done) == len(runs), len(runs)), measured, len(runs))


def price(suites: dict[str, Suite]) -> Claim:
    """Exponential in the heads."""
    text, place = "the price is exponential in the number of heads", "theorem and lower bounds"
    lines = [
        line for line in suites["sculpt"].lines if "target" not in line["case"] and "kind" not in line["case"]
    ]
    points = grown(lines, "m", {"d": 9, "k": 3, "scale": 4.5})
    if len(points) < 3:
        return not_run(text, place)
    values, per_slab, *_ = zip(*points)
    seeds = min(sum(line["case"]["m"] == m and line["case"]["d"] == 9 for line in lines) for m in values)
    measured = f"Examples for one certified row at d = 9, k = 3, m = 1, 2, 3: {', '.join(f'{v:.2g}' for v in per_slab)}, {fitted('m', np.array(values), np.array(per_slab))}."
    picture = Lines(
        "Examples for one certified row, d = 9, k = 3",
        series=(Series("examples", list(values), list(per_slab)),),
        x_label="heads",
        y_label="examples",
        log_y=True,
    )
    return Claim(
        text,
        place,
        judged(all(b > 5 * a for a, b in pairwise(per_slab)), seeds),
        measured,
        seeds,
        picture,
        "papers-price.svg",
    )


def learned(suites: dict[str, Suite]) -> Claim:
    """Our route from end to end."""
    text, place = (
        "random non-degenerate layers are learned (our steps, then Gauss-Newton and the certificate)",
        "theorem",
    )
    lines = [
        line for line in suites["sculpt"].lines if "target" not in line["case"] and "kind" not in line["case"]
    ]
    parts, good, total = [], 0, 0
    for m in (1, 2, 3):
        full = [
            line["result"]["full"]
            for line in lines
            if line["case"]["m"] == m and line["case"]["m"] * (line["case"]["k"] - 1) <= line["case"]["d"]
        ]
        exact = sum((r.get("error") or float("inf")) < EXACT for r in full)
        parts.append(f"m = {m}: {exact} of {len(full)}")
        good, total = good + exact, total + len(full)
    measured = f"Recovered to 1e-6, d = 8 to 16: {', '.join(parts)}. From three heads on our search replaces the paper's, whose guarantee does not carry over."
    return Claim(text, place, judged(good >= 0.9 * total, total), measured, total)


def wall(suites: dict[str, Suite]) -> Claim:
    """Statistical-query learners on parities."""
    text, place = "statistical-query learners fail on layers that hide a parity", "lower bound"
    lines = [
        line
        for line in suites["hardness"].lines
        if line["case"].get("what") == "wall" and line["case"]["heads"] >= 4
    ]
    counts: dict[str, Any] = {}
    for family in ("generic", "parity"):
        errors = [
            line["result"]["error"]
            for line in lines
            if line["case"]["family"] == family and line["case"]["learner"] in ("spectral", "Adam")
        ]
        counts[family] = (sum(error <= SUCCESS for error in errors), len(errors))
    if not counts["parity"][1]:
        return not_run(text, place)
    (easy, of), (hard, among) = counts["generic"], counts["parity"]
    measured = f"Spectral route and Adam, four and six heads: learned {easy} of {of} random layers and {hard} of {among} parities ([hardness](hardness.md))."
    return Claim(text, place, judged(hard == 0 and easy > of / 2, among // 4), measured, among // 4)
