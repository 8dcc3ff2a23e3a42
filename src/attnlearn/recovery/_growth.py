"""One more head: what the moment cannot show, found by adding a head with random scores and fitting again.

The moment sees sum_i vec(Theta_i) vec(W_i)^T: heads whose W are parallel or opposite share one singular value, a head
whose scores are nearly flat lies below the noise floor, and more heads than outputs overlap. The fit of the others then leaves
a misfit. A misfit of some per cent is no noise. A smaller one is noise unless its own moment shows a head.

When several heads are missing, adding one reduces the error by little. Heads are added while each reduces it by a tenth.
An error above the size of the outputs counts as that size: a fit that is worse than none has found nothing to add to.

Cost: a fit of full rank for every head tried. With three heads in twelve
dimensions, of which one was flat or nearly so, or two or three had W parallel or opposite, the first start found what was
missing in 13 of 13 layers; eight heads in five dimensions on ±1 tokens, seen as five, took four starts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Fit
from attnlearn.recovery._problem import Need, Problem
from attnlearn.recovery._signals import Signals, measure
from attnlearn.recovery.moment import take_moment
from attnlearn.solve._calibration import LOOK_MOST
from attnlearn.solve._split import Split


class Growth(NamedTuple):
    """The fit to which a head would be added, the number of the start, or why no further head is tried."""

    found: Fit
    start: int
    over: str | None


def growth(origin: Fit, grown: list[Fit]) -> Growth:
    """Where growing stands: `grown` are the fits with further heads, in the order in which they were tried."""
    found, rest, starts = origin, list(grown), calibration.FEW - 1
    while rest:
        before = min(found.select_error, 1.0)
        much = rest[0].select_error < calibration.MUCH_BETTER * before
        tries = rest[: 1 if much else starts]
        if not much and len(tries) < starts:
            return Growth(found, len(tries), None)
        better = min(tries, key=lambda fit: fit.select_error)
        if better.select_error >= calibration.NEARLY_ALL * before:
            return Growth(found, 0, "another head does not lower the error")
        found, rest = better, rest[len(tries) :]
    return Growth(found, 0, None)


def shows_a_head(problem: Problem, signals: Signals, fit: Fit, tools: Tools) -> bool:
    """Whether the moment of what a fit leaves of the outputs has a value above the noise floor."""
    sample = problem.fit_side(LOOK_MOST)
    rest = sample.y - fit.layer(sample.x, mask=sample.mask)
    left = Problem(as_examples(sample.x, rest, sample.mask), Split.make(len(rest)), causal=signals.causal)
    measured = measure(left, tools)
    return not isinstance(measured, Need) and take_moment(left, measured, tools)[0].visible > 0


def with_random_head(signals: Signals, fit: Fit, rng: np.random.Generator) -> AttentionLayer:
    """The fit's layer with one more head of random scores; the fit finds its W."""
    layer, r = fit.layer, signals.directions
    scores = rng.standard_normal((1, r, r)) * calibration.WIDE_SCORES / r
    zeros = np.zeros((1, r, layer.out_dim)), np.zeros((1, r)), np.zeros(layer.out_dim)
    head = signals.white.leave(Parameters(scores, *zeros))
    theta, w, query_bias = (
        np.concatenate([there, one.astype(layer.dtype)])
        for there, one in zip(layer.parameters[:3], head[:3], strict=True)
    )
    return AttentionLayer(theta, w, query_bias, layer.output_bias, causal=layer.causal)
