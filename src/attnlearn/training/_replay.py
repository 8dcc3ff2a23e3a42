"""Replayed leave-one-out runs: the truth that the recursion bounds, for a random subset of examples.

Each run repeats the descent on L^{-i} (the weight of example i set to 0, its share of the first-step start
removed) with the same step and signs. One run after the other through the same compiled loop, so memory is
that of one run. The mean over i of l_i(theta_K^{-i}) - l_i(theta_K) estimates test minus train without bias
towards this sample's examples being seen. Cost: as many evaluations as the run itself, for each i.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnlearn._jax import jnp
from attnlearn.engine import Tools
from attnlearn.training._calibration import DIVERGED, SEGMENT_STEPS
from attnlearn.training._descent import Rates, advance, finish, start
from attnlearn.training._loss import Chunks, cut
from attnlearn.training._model import Weights, equal_scales
from attnlearn.training._problem import Problem


def replay_runs(
    problem: Problem, state: Any, chosen: np.ndarray, rng: np.random.Generator, rates: Rates, tools: Tools
) -> dict[str, Any]:
    """Distances and loss differences of the leave-one-out runs of the examples `chosen`."""
    distances, differences = [], []
    seed_state = rng.bit_generator.state
    whole = Weights(*state.weights)
    full = np.logaddexp(0, -np.asarray(state.margins, np.float64))
    with tools.progress.phase("leave one out", total=len(chosen)):
        for index in chosen:
            rng.bit_generator.state = seed_state
            final, margins = replay(problem, int(index), rng, rates)
            parts = zip(final, whole)
            away = sum(((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2).sum() for a, b in parts)
            distances.append(float(np.sqrt(away)))
            differences.append(float(np.logaddexp(0, -float(margins[index])) - full[index]))
            tools.progress.update()
    evidence: dict[str, Any] = {
        "replays": len(chosen),
        "replayed": [int(index) for index in chosen],
        "leave_one_out_distance": distances,
        "leave_one_out_gap": float(np.mean(differences)),
    }
    if state.distances is not None:
        bound = np.asarray(state.distances)[chosen]
        evidence["distance_bound"] = [float(v) if v < DIVERGED else None for v in bound]
    return evidence


def replay(
    problem: Problem, index: int, rng: np.random.Generator, rates: Rates
) -> tuple[Weights, np.ndarray]:
    """theta_K^{-i} and the margins of all examples there."""
    num = len(problem.x)
    weight = np.full(num, 1 / num, problem.dtype)
    weight[index] = 0
    labels = problem.y.copy()
    labels[index] = 0  # the first-step start is a sum of y_i terms: without example i
    begin = replace(problem, y=labels).first_weights(rng)
    chunks = Chunks(*map(jnp.asarray, cut(problem.x, problem.y, problem.num_heads, weight)))
    scales = equal_scales(problem.num_heads, problem.dtype)
    current = start("gd", Weights(*map(jnp.asarray, begin)), jnp.zeros((), problem.dtype))
    for done in range(0, problem.max_steps, SEGMENT_STEPS):
        steps = jnp.asarray(min(SEGMENT_STEPS, problem.max_steps - done))
        current, _ = advance(
            problem.model, "gd", False, current, chunks, scales, current.weights, rates, steps
        )
    _, margins, _ = finish(problem.model, current.weights, chunks, scales, current.weights)
    return Weights(*map(np.asarray, current.weights)), np.asarray(margins).reshape(-1)[:num]
