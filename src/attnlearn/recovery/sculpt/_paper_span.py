"""The linear span of the heads as in the paper: from the body K, by membership queries "is this point in K?".

K is long along the hull of the heads and thin across it. Let c be a point inside. The distance from c to the boundary in
direction v is found by bisection, 1 over it is a convex function of v, and its gradient is n/h: n the normal of the
facet that v meets, h the facet's distance from c along n. So p + 1 bisections give one facet. In the second moment of
n/h over random v, the directions in which K is long have the smallest eigenvalues. With c they span the heads.

Ours (`_hull`) reads the *affine* hull, one dimension less, off the slabs themselves. How exactly the paper uses its
queries was not at hand: this is one way to do it with queries alone, after c, which is one linear program.

Cost: (p + 1) x bisections queries a facet, each a product with every slab and half-space. What can fail: a body that is
as wide across as along; `gap` says so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from attnlearn._errors import AttnlearnError
from attnlearn.engine import Tools
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._body import NO_HALF_SPACES, Body
from attnlearn.recovery.sculpt._carve import body_of, find_hull, slabs_at_end
from attnlearn.recovery.sculpt._program import Program
from attnlearn.recovery.sculpt._state import Problem, State


def queried_span(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """A point of the body and the directions in which it is long; evidence: queries and lengths."""
    assert problem.num_heads is not None
    slabs = slabs_at_end(problem, state)
    hull, _ = find_hull(problem, slabs)
    body, missed = body_of(state, slabs, hull, calibration.FINAL_BODY_SLABS)
    body = dataclasses.replace(body, half_spaces=NO_HALF_SPACES)  # the paper's constraints are affine
    asked, inner = Membership(body), centre(body)
    long = problem.num_heads - 1  # one head needs no direction besides the point itself
    count = calibration.FACETS_PER_UNKNOWN * len(inner) if long else 0
    normals = facets(asked, inner, count, tools.rng("membership"))
    values, axes = np.linalg.eigh(normals.T @ normals / max(len(normals), 1))
    lengths = 1 / np.sqrt(np.maximum(values, np.finfo(float).tiny))
    directions = axes[:, :long].T
    evidence: dict[str, Any] = {
        "num_heads": problem.num_heads,
        "queries": asked.queries,
        "facets": len(normals),
        "lengths": lengths[: calibration.SHOWN_SINGULAR_VALUES] if long else None,
        "gap": float(lengths[long - 1] / lengths[long]) if long else None,
        "slabs": len(slabs.offsets),
        "missed_by_hull": missed,
    }
    shape = state.minimum_norm.shape
    base = inner - directions.T @ (directions @ inner)
    return dataclasses.replace(
        state,
        num_heads=problem.num_heads,
        base=base.reshape(shape),
        directions=directions.reshape(long, *shape),
    ), evidence


class Membership:
    """The body as an oracle that answers whether points are inside, and counts."""

    def __init__(self, body: Body) -> None:
        self.rows, self.low, self.high = body.constraints()
        self.radius, self.queries = body.radius, 0

    def __call__(self, points: Float[np.ndarray, "n p"]) -> Bool[np.ndarray, "n"]:
        """Which of the points are inside."""
        self.queries += len(points)
        values = points @ self.rows.T
        inside = np.all((values >= self.low) & (values <= self.high), axis=1)
        return inside & (np.abs(points).max(axis=1) <= self.radius)


def centre(body: Body) -> Float[np.ndarray, "p"]:
    """The centre of the largest ball inside the body: the largest r with a . theta ± ‖a‖ r inside every limit."""
    rows, low, high = body.constraints()
    norms, none = np.linalg.norm(rows, axis=1, keepdims=True), np.full(len(rows), np.inf)
    both = np.concatenate([np.hstack([rows, norms]), np.hstack([rows, -norms])])
    program = Program(both, np.concatenate([-none, low]), np.concatenate([high, none]), body.radius)
    found = program.lowest(-np.eye(rows.shape[1] + 1)[-1])
    if found is None or found[-1] <= 0:
        raise AttnlearnError("the body has no interior")
    return found[:-1]


def facets(
    inside: Membership, inner: Float[np.ndarray, "p"], count: int, rng: np.random.Generator
) -> Float[np.ndarray, "f p"]:
    """n/h of the facets that `count` random directions meet.

    >>> body = Body.box(np.array([2.0, 0.1, 0.1]))
    >>> found = facets(Membership(body), np.zeros(3), 24, np.random.default_rng(0))
    >>> np.abs(found).max(axis=0).round(1).tolist()[1:]
    [10.0, 10.0]
    """
    p = len(inner)
    found = np.empty((count, p))
    for place in range(len(found)):
        v = rng.standard_normal(p)
        v /= np.linalg.norm(v)
        beside = v + calibration.FACET_STEP * np.eye(p)
        gauge = 1 / reach(inside, inner, np.concatenate([v[None], beside]))
        found[place] = (gauge[1:] - gauge[0]) / calibration.FACET_STEP
    return found


def reach(
    inside: Membership, inner: Float[np.ndarray, "p"], directions: Float[np.ndarray, "n p"]
) -> Float[np.ndarray, "n"]:
    """How many times each direction fits between the inner point and the boundary, by bisection of the logarithm."""
    low = np.full(len(directions), np.log(calibration.SHORTEST * inside.radius))
    high = np.full(len(directions), np.log(4 * inside.radius * np.sqrt(len(inner))))
    for _ in range(calibration.BISECTIONS):
        middle = (low + high) / 2
        ok = inside(inner + np.exp(middle)[:, None] * directions)
        low, high = np.where(ok, middle, low), np.where(ok, high, middle)
    return np.exp((low + high) / 2)
