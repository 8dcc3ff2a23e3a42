"""The claims of *Provably learning a multi-head attention layer* on generic layers, as figures with numbers.

For each (d, k, m): the error of the crude sum of projections, by the paper's correlation and by ours, and after it was
refined; the width of the convex body across the hull of the heads, round by round; the error of the hull and of the weights before the last fit; the error
after it; examples and seconds. Errors are true ones, against the layer that made the examples. The spectral route on
the same layers stands beside it, and up to two heads the paper's own steps (`_steps`): all of them, and one at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, data, distance
from attnlearn._attention import Parameters
from attnlearn.engine import Engine, Progress, Stop, Tools
from attnlearn.recovery import recover
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.recovery.sculpt._source import FitSide
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.recovery.sculpt._sum import crude_sum
from attnlearn.reproduce._cases import run_cases
from attnlearn.reproduce._steps import VARIANTS, sections, step_table, stepwise
from attnlearn.solve._split import Split
from attnlearn.solve._white import whitening
from attnlearn.solve.refinement import refine

SHORT = ((8, 3, 1), (8, 3, 2))
USUAL = ((6, 3, 1), (8, 3, 1), (8, 4, 1), (6, 3, 2), (8, 3, 2))
LONG = (*USUAL, (8, 4, 2), (10, 4, 2), (12, 4, 2), (9, 3, 3))
SCALE = 4.0
"""‖Theta_i‖: strong enough for rows in which one or two tokens take all."""
REFINED_ON, FRESH = 6_000, 20_000
MOST_PAPER = 2
"""The paper's own search is exponential in the heads: up to two."""


def learning(
    *,
    seed: int = 0,
    quick: bool = False,
    long: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    show: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run every size; `quick` two of them with fewer of the paper's steps, `long` also those that take minutes each.

    >>> (8, 4, 2) in LONG
    True
    """
    sizes = SHORT if quick else LONG if long else USUAL
    budget = 30_000_000 if long else 400_000 if quick else 1_000_000
    cases = [
        {
            "dim": d,
            "tokens": k,
            "heads": m,
            "budget": budget,
            "seed": seed + number,
            "steps": ["ours", "paper"] if quick else list(VARIANTS),
            "rounds": 2 if quick else 3,
        }
        for number in range(3 if long else 1)
        for d, k, m in sizes
    ]
    rows = run_cases("learning", cases, run_case, checkpoint=checkpoint, show=show)
    points = [row["case"] | row["result"] for row in rows]
    text = "\n\n".join([_table(points), step_table(points)])
    return {"learning": {"points": points, "text": text}}


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    layer = AttentionLayer.random(case["heads"], case["dim"], scale=SCALE, seed=case["seed"])
    source = data.Boolean(case["tokens"], case["dim"])
    began = time.perf_counter()
    config = SculptConfig(refine=False, num_examples=case["budget"])
    found = recover(
        source,
        layer,
        method="sculpt",
        config=config,
        seed=case["seed"],
        raise_on_failure=False,
        progress=False,
    )
    seconds = time.perf_counter() - began
    phases = {phase.name: phase.evidence for phase in found.phases}
    rounds = phases.get("carve", {}).get("rounds", [])
    result: dict[str, Any] = {
        "outcome": found.outcome.name,
        "correlation_error": correlation_error(layer, source, case["seed"]),
        "crude_sum_error": crude_sum_error(layer, source, case["seed"]),
        "refined_sum_error": [entry["sum_error"] for entry in rounds],
        "widths_across": [max(entry["widths_across"]) / SCALE for entry in rounds],
        "tolerances": [entry["tolerance"] for entry in rounds],
        "examples": found.stats.get("examples"),
        "seconds": seconds,
    }
    if found.layer is not None:
        result |= _errors(found.layer, layer, source, case["seed"])
    if case["heads"] <= MOST_PAPER:
        variants = case["steps"]
        result["by_step"] = {
            name: stepwise(layer, source, name, case["seed"], case["budget"]) for name in variants
        }
    if case["heads"] == MOST_PAPER:
        result["sections"] = sections(layer, source, case["seed"], case["budget"], case["rounds"])
    return result | {"spectral": _spectral(layer, source, case["seed"])}


def _errors(found: AttentionLayer, layer: AttentionLayer, source: Any, seed: int) -> dict[str, Any]:
    x = source.sample(FRESH, seed=seed + 1)
    began = time.perf_counter()
    fitted = refine(found, x[:REFINED_ON], layer(x[:REFINED_ON])).layer
    apart = distance(found, layer)
    return {
        "num_heads": found.num_heads,
        "hull_error": hull_error(found, layer, x),
        "weights_error": max(apart.theta, apart.w),
        "recovery_error": distance(fitted, layer).max,
        "refine_seconds": time.perf_counter() - began,
    }


def _spectral(layer: AttentionLayer, source: Any, seed: int) -> dict[str, Any]:
    x = source.sample(FRESH, seed=seed)
    began = time.perf_counter()
    found = recover(x, layer(x), seed=seed, raise_on_failure=False, progress=False)
    error = None if found.layer is None else distance(found.layer, layer).max
    return {
        "outcome": found.outcome.name,
        "error": error,
        "examples": FRESH,
        "seconds": time.perf_counter() - began,
    }


def crude_sum_error(layer: AttentionLayer, source: Any, seed: int) -> float | None:
    """Relative error of S after the first phase alone; None when no sum was found."""
    config = SculptConfig()
    x = source.sample(config.held_examples, seed=seed)
    examples = data.as_examples(x, layer(x))
    split = Split.make(examples.num, seed=seed)
    problem = Problem(examples, split, FitSide(examples, split.fit, config.batch), config)
    try:
        state, _ = crude_sum(problem, State(), Tools(Engine.parse(None), Progress.make(False), seed))
    except Stop:
        return None
    true = state.whitening.enter(layer.parameters).w.sum(axis=0)
    return float(np.linalg.norm(state.sum[:-1] - true) / np.linalg.norm(true))


def correlation_error(layer: AttentionLayer, source: Any, seed: int, num: int | None = None) -> float:
    """Relative error of the paper's first estimate of S, the mean of X^T J Y / k with J all ones, on as many examples as ours reads.

    It is exact in the limit where attention is uniform (tokens white, independent); what attention adds is a bias.

    >>> flat = AttentionLayer(np.zeros((1, 4, 4)), np.eye(4)[None])
    >>> correlation_error(flat, data.Boolean(3, 4), 0, num=20_000) < 0.05
    True
    """
    total, number = np.zeros((layer.dim, layer.out_dim)), num or SculptConfig().held_examples
    for x in source.stream(number, FRESH, seed=seed):
        total += x.sum(axis=1).T @ layer(x).sum(axis=1) / x.shape[1]
    true = layer.w.sum(axis=0)
    return float(np.linalg.norm(total / number - true) / np.linalg.norm(true))


def hull_error(found: AttentionLayer, truth: AttentionLayer, x: np.ndarray) -> float:
    """Distance of the worst true head from the affine hull of the found ones, over its norm, on white tokens.

    >>> layer = AttentionLayer.random(2, 4)
    >>> hull_error(layer, layer, data.Boolean(3, 4).sample(200)) < 1e-12
    True
    """
    white = whitening(x, None)
    near, true = (_heads(white.enter(layer.parameters)) for layer in (found, truth))
    base = near[0]
    basis = np.linalg.qr((near[1:] - base).T)[0] if len(near) > 1 else np.zeros((len(base), 0))
    rest = true - base
    rest = rest - (rest @ basis) @ basis.T
    return float(np.max(np.linalg.norm(rest, axis=1) / np.linalg.norm(true, axis=1)))


def _heads(parameters: Parameters) -> np.ndarray:
    stacked = np.concatenate([parameters.theta, parameters.query_bias[:, None, :]], axis=1)
    return stacked.reshape(len(stacked), -1)


def _table(points: list[dict[str, Any]]) -> str:
    columns = (
        "correlation_error", "crude_sum_error", "widths_across", "hull_error", "weights_error", "recovery_error", "examples", "seconds"
    )  # fmt: skip
    lines = [
        "  d  k  m  " + "  ".join(f"{name.replace('_', ' '):>24}" for name in columns) + "  spectral seconds"
    ]
    for point in points:
        cells = "  ".join(f"{_cell(point.get(name)):>24}" for name in columns)
        beside = point["spectral"]["seconds"]
        lines.append(f"{point['dim']:>3}{point['tokens']:>3}{point['heads']:>3}  {cells}  {beside:>16.1f}")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None or value == []:
        return "not reached"
    if isinstance(value, list):
        return " -> ".join(f"{entry:.2g}" for entry in value)
    return f"{value:.2g}" if isinstance(value, float) else f"{value:,}"
