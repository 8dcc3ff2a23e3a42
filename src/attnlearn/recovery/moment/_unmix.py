"""Unmix: from the span to a layer that the fit can start from.

The coordinates that the count found on the span give each head's Theta_i and c_i; if
the count's starts ended in different optima, variable projection on fresh rows from these and from random ones. Both are
carried back to the caller's coordinates. W_i and b are left at zero: the fit finds them for given scores.

Cost: at most a few unmixings. What can fail: starts that end in different
optima while the heads have effective rank near one (`swapped`): then a head and its swap explain the moment equally well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn._summary import effective_ranks
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem, Weights
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment._count import Counted
from attnlearn.recovery.moment._moment import Moment
from attnlearn.recovery.moment._rank import infer_rank
from attnlearn.recovery.moment._span import best_start, span_models


@dataclass(frozen=True)
class Heads:
    """The heads in the caller's coordinates, their rank (None: free), and what they leave of the select side.

    `swapped`: heads and their swaps could not be told apart, so that some may be there twice.
    """

    weights: Weights
    rank: int | None
    unexplained: float
    swapped: bool
    evidence: dict[str, Any]


def unmix(problem: Problem, signals: Signals, moment: Moment, counted: Counted, tools: Tools) -> Heads:
    """Heads, projections and rank from the coordinates on the span."""
    a = counted.coordinates
    heads, vectors = a.shape
    rng = tools.rng(f"unmix {heads}")
    starts, agreed, unexplained = {}, counted.agreed, counted.unexplained
    if not agreed:  # otherwise other starts would end where the count's did
        bases = moment.query_basis[:vectors], moment.value_basis[:vectors]
        model, other = span_models(problem, signals, *bases, rng)
        found = best_start(model, heads, rng, a, tools.engine)
        a, agreed, unexplained = (
            found.coordinates,
            found.agreed,
            other.judge(found.coordinates, found.fit.mixing),
        )
        starts = {"residual_shares": found.shares, "steps": found.steps}
    scores = np.tensordot(a, moment.query_basis[:vectors], axes=1)
    theta, query_bias = scores[:, :-1], scores[:, -1]
    rank, spectrum, edge = infer_rank(signals, moment, a, scores)
    effective = effective_ranks(spectrum)
    evidence = starts | {
        "select_residual": unexplained,
        "score_std": np.linalg.norm(scores, axis=(1, 2)).tolist(),
        "rank": rank,
        "head_spectra": spectrum.tolist(),
        "rank_edge": edge.tolist(),
        "effective_rank": effective.tolist(),
    }
    out = problem.examples.out_dim
    outside = signals.white.leave(
        Parameters(theta, np.zeros((*theta.shape[:2], out)), query_bias, np.zeros(out))
    )
    swapped = not agreed and bool(np.median(effective) < calibration.EFFECTIVE_RANK)
    layer = AttentionLayer(*outside, causal=signals.causal)
    return Heads(Weights.of(layer), rank, unexplained, swapped, evidence)
