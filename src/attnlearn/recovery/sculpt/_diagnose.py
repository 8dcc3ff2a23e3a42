"""When no body can be carved, or the answer does not fit: which condition of the theorem does the layer break?

The theorem asks for m (k - 1) <= d_out, for heads of comparable size, for Theta_i of large effective rank, for Theta_i
and W_i that are incoherent, and for a sum of the W_i that is not singular. Examples show none of this by themselves. So
refine looks for a layer that fits them to rounding, from random starts, with as few heads as possible. The conditions
are measured on that layer in white coordinates, and the first that is broken is the reason. A fit from random starts
names the reason of a failure; it is never used to answer.

Cost: a few calls of refine for every number of heads. What can fail: random starts that miss the fit; the reason then
stays open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn._summary import effective_ranks
from attnlearn.engine import Stop, Tools
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.solve._batch import Batch, example_scale, unit_errors
from attnlearn.solve._heads import (
    BALANCE,
    CANCELLED,
    COHERENT,
    RANK_ONE,
    balance,
    cancellation,
    largest_cosine,
)
from attnlearn.solve.refinement import RefineConfig, refine


class Condition(NamedTuple):
    """One condition of the theorem, measured: `left` against `right`, and the outcome that says it is broken."""

    outcome: str
    text: str
    left: float
    right: float
    holds: bool

    @property
    def evidence(self) -> dict[str, Any]:
        """What a report says about it."""
        return {"condition": self.text, "left": self.left, "right": self.right}


def reason_of(problem: Problem, state: State, tools: Tools, otherwise: Stop) -> Stop:
    """The stop that names the broken condition; `otherwise` when no fit is found, or one that breaks none."""
    layer = fitting_layer(problem, state, tools)
    broken = None if layer is None else broken_condition(problem, state, layer)
    if broken is None:
        return otherwise
    return Stop(broken.outcome, otherwise.evidence | broken.evidence, otherwise.state)


def fitting_layer(problem: Problem, state: State, tools: Tools) -> AttentionLayer | None:
    """A layer with as few heads as possible that fits the examples to rounding, if random starts find one."""
    provable = problem.examples.out_dim // max(problem.examples.tokens - 1, 1)
    most = min(provable, problem.config.max_heads) + calibration.HEADS_BEYOND
    counts = range(1, most + 1) if problem.num_heads is None else [problem.num_heads]
    fit = Batch.of(problem.examples, problem.split.fit[: calibration.DIAGNOSED])
    select = Batch.of(problem.examples, problem.split.select[: calibration.DIAGNOSED])
    scale = example_scale(fit)
    rank, out = state.root.shape[1], problem.examples.out_dim
    for heads in counts:
        rng = tools.rng(f"diagnose {heads}")
        for _ in range(calibration.DIAGNOSIS_STARTS):
            theta = rng.standard_normal((heads, rank, rank)) * calibration.DIAGNOSIS_SCALE / rank
            zero = Parameters(theta, np.zeros((heads, rank, out)), np.zeros((heads, rank)), np.zeros(out))
            arrays = [array.astype(fit.x.dtype) for array in state.whitening.leave(zero)]
            start = AttentionLayer(*arrays, causal=bool(state.causal))
            found = refine(start, fit.x, fit.y, mask=fit.mask, config=RefineConfig(seed=tools.seed))
            # So few examples that any layer could fit them tell nothing: others must agree.
            if found.stop == "floor" and unit_errors(found.layer, select, scale).max() < calibration.AGREES:
                return found.layer
    return None


def broken_condition(problem: Problem, state: State, layer: AttentionLayer) -> Condition | None:
    """The first condition that `layer` breaks on these tokens."""
    inside = state.whitening.enter(layer.parameters)
    found = measured(inside, problem.examples.tokens)
    return next((condition for condition in found if not condition.holds), None)


def measured(layer: Parameters, tokens: int) -> Iterator[Condition]:
    """Every condition on a layer in white coordinates.

    Sizes come before directions: the direction of a head that is nothing is rounding.

    >>> layer = AttentionLayer.random(2, 8, seed=0)
    >>> [condition.holds for condition in measured(layer.parameters, tokens=4)]
    [True, True, True, True, True, True, True]
    """
    heads, _, out = layer.w.shape
    yield _at_most("TOO_MANY_HEADS", "m (k - 1) <= d_out", heads * (tokens - 1), out)
    scores = np.concatenate([layer.theta, layer.query_bias[:, None]], axis=1)
    for name, matrices in (("Theta", scores), ("W", layer.w)):
        text = f"largest norm of a {name} over the smallest <= {BALANCE:g}"
        yield _at_most("HEADS_UNBALANCED", text, balance(matrices), BALANCE)
    text = f"smallest singular value of the sum of W, on the rank of all W, over the largest of a W >= {CANCELLED:g}"
    yield _at_least("PROJECTIONS_CANCEL", text, cancellation(layer.w), CANCELLED)
    for name, matrices in (("Theta", scores), ("W", layer.w)):
        text = f"largest cosine of two {name} <= {COHERENT:g}"
        yield _at_most("HEADS_COHERENT", text, largest_cosine(matrices), COHERENT)
    rank = effective_ranks(np.linalg.svd(layer.theta, compute_uv=False)).min()
    text = f"least effective rank of a Theta >= {RANK_ONE:g}"
    yield _at_least("LOW_EFFECTIVE_RANK", text, rank, RANK_ONE)


def _at_most(outcome: str, text: str, left: float, right: float) -> Condition:
    return Condition(outcome, text, float(left), float(right), bool(left <= right))


def _at_least(outcome: str, text: str, left: float, right: float) -> Condition:
    return Condition(outcome, text, float(left), float(right), bool(left >= right))
