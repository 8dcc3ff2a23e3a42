"""The heads as the paper finds them: every tuple of an epsilon-net of the span, W by least squares, the best on fresh examples.

The net is a grid in the ball of the m-dimensional linear span of the heads. W of every tuple follows from the Gram matrix
of all net points on fit examples, and its error from the Gram matrix on select examples. Nothing is polished: the error
is that of the net. Ours (`_search`) nets the affine hull, one dimension less, and polishes the best tuples.

Cost: points^m / m! tuples, (m d)^3 each, which is why the paper's time is exponential in m and why this step is for one
and two heads. What can fail: a span that misses a head.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnlearn.engine import Tools
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._rows import as_batch
from attnlearn.recovery.sculpt._search import Grams, HullFit, layer_at
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.solve._batch import Batch, example_scale, unit_errors


def every_tuple(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The tuple of net points whose layer has the least error on select examples; evidence: how many were tried."""
    net, basis = span_net(state)
    state_in_span = dataclasses.replace(state, base=np.zeros_like(state.base), directions=basis)
    count = problem.config.search_sequences
    sides = [
        HullFit(
            as_batch(problem.examples.take(side[:count]), state.whitening, bool(state.causal)), state_in_span
        )
        for side in (problem.split.fit, problem.split.select)
    ]
    fit, fresh = (side.gram(net) for side in sides)
    tuples = np.array(list(itertools.combinations(range(len(net)), state.num_heads)))
    errors = np.concatenate(
        [
            validation_errors(fit, fresh, tuples[start : start + calibration.TUPLES_AT_ONCE])
            for start in range(0, len(tuples), calibration.TUPLES_AT_ONCE)
        ]
    )
    best = int(np.argmin(errors))
    chunk = problem.examples.take(problem.split.fit[:count])
    layer = layer_at(state_in_span, net[tuples[best]], chunk)
    scale = example_scale(Batch.of(problem.examples, problem.split.fit[:count]))
    judged = unit_errors(layer, Batch.of(problem.examples, problem.split.select), scale)
    info = {
        "net_points": len(net),
        "tuples": len(tuples),
        "select_error": float(np.sqrt(np.mean(judged**2))),
        "select_worst": float(judged.max()),
        "answer": layer.parameters._asdict(),
    }
    return dataclasses.replace(state, **info["answer"]), info


def span_net(state: State) -> tuple[Float[np.ndarray, "g m"], Float[np.ndarray, "m e1 e"]]:
    """A grid in the ball of the linear span, about PAPER_NET points, and the basis of the span."""
    vectors = np.concatenate([state.base[None], state.directions]).reshape(state.num_heads, -1)
    basis = np.linalg.qr(vectors.T)[0].T
    # Incoherent heads of equal norm are sqrt(m) times as long as the point of their hull nearest to 0.
    reach = calibration.PAPER_REACH * np.sqrt(state.num_heads) * np.linalg.norm(state.base)
    axis = np.linspace(-reach, reach, round(calibration.PAPER_NET ** (1 / state.num_heads)))
    net = np.stack(np.meshgrid(*[axis] * state.num_heads, indexing="ij"), axis=-1)
    net = net.reshape(-1, state.num_heads)
    return net[np.linalg.norm(net, axis=1) <= reach * (1 + 1e-12)], basis.reshape(-1, *state.base.shape)


def validation_errors(fit: Grams, fresh: Grams, tuples: Int[np.ndarray, "t m"]) -> Float[np.ndarray, "t"]:
    """Squared error on `fresh` of each tuple with the W that is best on `fit`."""
    width, last = fit.width, len(fit.gram) - 1
    places = (tuples[:, :, None] * width + np.arange(width)).reshape(len(tuples), -1)
    places = np.concatenate([places, np.full((len(tuples), 1), last)], axis=1)
    across = places[:, :, None], places[:, None, :]
    block = fit.gram[across]
    trace = np.trace(block, axis1=1, axis2=2)[:, None, None]
    ridge = calibration.NET_RIDGE * trace / block.shape[1] * np.eye(block.shape[1])
    w = np.linalg.solve(block + ridge, fit.right[places])
    both = np.sum(w * (fresh.gram[across] @ w), axis=(1, 2))
    return fresh.total - 2 * np.sum(w * fresh.right[places], axis=(1, 2)) + both
