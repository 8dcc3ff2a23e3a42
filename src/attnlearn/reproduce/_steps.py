"""Sculpting one step at a time, with the paper's own steps beside ours, and true errors after each.

`variant` names the steps that run as in the paper: "ours" none, "paper" all, otherwise one of them. Errors are against the
layer that made the examples: of the sum before and after the carving, of the linear span and of the weights at the end,
nothing refined. `sections` shows the body of every round in the plane of two heads.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn import AttentionLayer, data, distance
from attnlearn._errors import AttnlearnError
from attnlearn.engine import Engine, Progress, Stop, Tools
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._body import Body
from attnlearn.recovery.sculpt._carve import as_vector, body_of, carve, find_hull, slabs_at_end
from attnlearn.recovery.sculpt._config import PAPER_STEPS
from attnlearn.recovery.sculpt._paper_span import centre
from attnlearn.recovery.sculpt._proposers import first_sum, hull_of, judged_search
from attnlearn.recovery.sculpt._source import OnDemand
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.solve._split import Split

VARIANTS = ("ours", *PAPER_STEPS, "paper")


def stepwise(layer: AttentionLayer, source: Any, variant: str, seed: int, budget: int) -> dict[str, Any]:
    """Run the phases with the paper's steps of this variant; errors, counts and processor seconds of each.

    >>> found = stepwise(AttentionLayer.random(1, 5, scale=4.0), data.Boolean(3, 5), "paper", 0, 60_000)
    >>> found["sum_error"] > 0.1, sorted(found["seconds"])[0]
    (True, 'carve')
    """
    problem, tools = problem_of(layer, source, variant, seed, budget)
    result: dict[str, Any] = {"outcome": "answered", "seconds": {}}
    state = State()
    for name in ("crude sum", "carve", "span", "search"):
        run = {
            "crude sum": first_sum(problem.config),
            "carve": carve,
            "span": hull_of(problem.config),
            "search": judged_search,
        }[name]
        began = time.process_time()
        try:
            state, info = run(problem, state, tools)
        except (Stop, AttnlearnError) as stop:
            result["outcome"] = getattr(stop, "outcome_name", "NUMERICAL_FAILURE")
            result["ended_at"] = name
            return result | {"seconds": result["seconds"] | {name: time.process_time() - began}}
        result["seconds"][name] = time.process_time() - began
        result |= _errors(name, state, info, layer)
    return result


def problem_of(
    layer: AttentionLayer, source: Any, variant: str, seed: int, budget: int, **settings: Any
) -> tuple[Problem, Tools]:
    """The problem of the phases, with the number of heads told, as the paper assumes."""
    steps = {"ours": (), "paper": PAPER_STEPS}.get(variant, (variant,))
    config = SculptConfig(num_examples=budget, faithful=steps, **settings)
    held = min(config.held_examples, budget)
    x = source.sample(held, seed=seed)
    examples = data.as_examples(x, layer(x))
    split = Split.make(examples.num, seed=seed)
    more = OnDemand(source, layer, seed, batch=config.batch, num=max(budget - held, 1))
    problem = Problem(examples, split, more, config, False, layer.num_heads)
    return problem, Tools(Engine.parse(None), Progress.make(False), seed)


def _errors(name: str, state: State, info: dict[str, Any], layer: AttentionLayer) -> dict[str, Any]:
    """What is known after a phase."""
    true = state.whitening.enter(layer.parameters)
    if name in ("crude sum", "carve"):
        total = true.w.sum(axis=0)
        error = float(np.linalg.norm(state.sum[:-1] - total) / np.linalg.norm(total))
        if name == "crude sum":
            return {"sum_error": error}
        kept = ("tolerance", "examples", "slabs", "width")
        return {
            "refined_sum_error": error,
            "rounds": [{key: entry[key] for key in kept} for entry in info["rounds"]],
        }
    heads = as_vector(true.theta, true.query_bias)
    if name == "span":
        found = np.concatenate([state.base[None], state.directions]).reshape(len(heads), -1)
        return {"span_error": outside(heads, found), "queries": info.get("queries")}
    apart = distance(AttentionLayer(**info["answer"]), layer)
    counts = {key: info.get(key) for key in ("tuples", "candidates")}
    return counts | {"weights_error": max(apart.theta, apart.w), "select_error": info["select_error"]}


def outside(heads: Float[np.ndarray, "m p"], vectors: Float[np.ndarray, "q p"]) -> float:
    """Distance of the worst head from the linear span of the vectors, over its norm.

    >>> outside(np.eye(3)[:1], np.eye(3)[:2]), outside(np.eye(3)[:1], np.eye(3)[1:])
    (0.0, 1.0)
    """
    basis = np.linalg.qr(vectors.T)[0]
    rest = heads - (heads @ basis) @ basis.T
    return float(np.max(np.linalg.norm(rest, axis=1) / np.linalg.norm(heads, axis=1)))


def sections(
    layer: AttentionLayer, source: Any, seed: int, budget: int, rounds: int = 3
) -> list[dict[str, Any]]:
    """The body after 1, 2, ... rounds in the plane through 0 and both heads, in units of ‖Theta‖.

    The first axis runs along the hull of the heads, the second from 0 to it. `shadow` is the projection of the body on the plane,
    `section` its cut through the centre of the largest ball inside.
    """
    cuts: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        problem, tools = problem_of(layer, source, "ours", seed, budget, max_rounds=number, narrow=0.0)
        try:
            first, _ = first_sum(problem.config)(problem, State(), tools)
            state, info = carve(problem, first, tools)
            if len(info["rounds"]) < number:
                break
            entry = info["rounds"][-1]
            cuts.append(_cut_of(problem, dataclasses.replace(state, tolerance=entry["tolerance"]), layer))
        except (Stop, AttnlearnError):
            break
        cuts[-1] |= {
            "round": number,
            **{name: entry[name] for name in ("tolerance", "slabs", "examples", "width")},
        }
    return cuts


def _cut_of(problem: Problem, state: State, layer: AttentionLayer) -> dict[str, Any]:
    """Shadow and section of the body that the slabs of a state make, and the heads beside it."""
    true = state.whitening.enter(layer.parameters)
    heads = as_vector(true.theta, true.query_bias)
    size = float(np.mean(np.linalg.norm(heads, axis=1)))
    slabs, plane = slabs_at_end(problem, state), plane_of(heads)
    body, _ = body_of(state, slabs, find_hull(problem, slabs)[0], calibration.BODY_SLABS)
    inner = centre(body)
    return {
        "shadow": shadow(body, plane) / size,
        "section": (polygon(body, plane, inner) + plane @ inner) / size,
        "heads": heads @ plane.T / size,
        "minimum_norm": plane @ state.minimum_norm.reshape(-1) / size,
        "violation": max(body.violation(head) for head in heads),
    }


def plane_of(heads: Float[np.ndarray, "2 p"]) -> Float[np.ndarray, "2 p"]:
    """Orthonormal: along the hull of two heads, and from 0 to it."""
    along = (heads[1] - heads[0]) / np.linalg.norm(heads[1] - heads[0])
    base = heads[0] - (heads[0] @ along) * along
    return np.stack([along, base / np.linalg.norm(base)])


def polygon(
    body: Body, plane: Float[np.ndarray, "2 p"], inner: Float[np.ndarray, "p"] | None = None
) -> Float[np.ndarray, "c 2"]:
    """The corners of the body's section with the plane through `inner`, counted from there.

    >>> sorted(polygon(Body.box(np.array([2.0, 1.0, 1.0])), np.eye(3)[:2]).round(6).tolist())
    [[-2.0, -1.0], [-2.0, 1.0], [2.0, -1.0], [2.0, 1.0]]
    """
    rows, low, high = body.constraints()
    shift = 0.0 if inner is None else rows @ inner
    corners = _square(body)
    for normal, least, most in zip(rows @ plane.T, low - shift, high - shift):
        for side, limit in ((normal, most), (-normal, -least)):
            if np.isfinite(limit) and len(corners):
                corners = _cut(corners, side, limit)
    return corners


def shadow(body: Body, plane: Float[np.ndarray, "2 p"], num: int = 24) -> Float[np.ndarray, "c 2"]:
    """The body's projection on the plane: a large square, cut by the support in `num` directions (linear programs).

    >>> bool(np.abs(shadow(Body.box(np.ones(3)), np.eye(3)[:2], num=4)).max() < 1.001)
    True
    """
    corners = _square(body)
    for angle in np.arange(num // 2) * 2 * np.pi / num:
        # Directions near the second axis, across the hull, where the body is thin; the first one is along it.
        normal = np.array([np.cos(angle) * (0.05 if angle else 1.0), np.sin(angle)])
        low, high = body.extent(normal @ plane)
        corners = _cut(_cut(corners, normal, high), -normal, -low)
    return corners


def _square(body: Body) -> Float[np.ndarray, "4 2"]:
    """A square that no section leaves."""
    return np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]]) * body.radius * np.sqrt(body.normals.shape[1])


def _cut(corners: Float[np.ndarray, "c 2"], normal: Float[np.ndarray, "2"], limit: float) -> np.ndarray:
    """The part of a convex polygon with normal . x <= limit."""
    value = corners @ normal - limit
    if np.all(value <= 0):
        return corners
    kept = []
    for place, corner in enumerate(corners):
        after = (place + 1) % len(corners)
        if value[place] <= 0:
            kept.append(corner)
        if (value[place] < 0) != (value[after] < 0) and value[place] != value[after]:
            share = value[place] / (value[place] - value[after])
            kept.append(corner + share * (corners[after] - corner))
    return np.array(kept).reshape(-1, 2)


def step_table(points: list[dict[str, Any]]) -> str:
    """One line per size and variant: what the paper's steps give in place of ours."""
    lines = [
        "  d  k  m  steps of the paper  first sum  refined sum      span    Theta, W  CPU seconds  ended"
    ]
    for point in points:
        size = f"{point['dim']:>3}{point['tokens']:>3}{point['heads']:>3}"
        for name, found in point.get("by_step", {}).items():
            shown = {"ours": "none", "paper": "all"}.get(name, name)
            errors = (
                found.get(key) for key in ("sum_error", "refined_sum_error", "span_error", "weights_error")
            )
            cells = "".join(f"{'-' if error is None else f'{error:.1e}':>12}" for error in errors)
            ended = found["outcome"] + (f" at {found['ended_at']}" if "ended_at" in found else "")
            lines.append(f"{size}  {shown:<16}{cells}{sum(found['seconds'].values()):>12.1f}   {ended}")
    return "\n".join(lines)
