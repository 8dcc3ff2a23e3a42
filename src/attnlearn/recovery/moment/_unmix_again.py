"""Unmix again: heads that the fit found are unmixed once more, inside their own span.

To first order in the scores the outputs depend on sum_i vec(Theta_i) vec(W_i)^T alone, which every mixture of the heads
leaves as it is. Weak attention tells the mixture by its second order only, less than the error of the moment's span. The fit
mends the span and then stalls in the valley of the mixtures; in the span that it leaves, the m^2 numbers of `unmix` lead out
of it (d = 16, m = 4, scores of size 0.03: heads 60 % off, and 1.4 % after).

Cost: an unmixing of a few hundred sequences, after a fit that is not exact. What can fail: nothing is lost, because other
mixtures are taken only if they explain the examples much better.
"""

from __future__ import annotations

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._rows import output_whitening
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment._span import best_start, span_models


def unmix_again(
    problem: Problem, signals: Signals, layer: AttentionLayer, tools: Tools
) -> AttentionLayer | None:
    """Other mixtures of the layer's heads, if they explain what the heads leave of the outputs; their W is not refitted."""
    inside = signals.white.enter(layer.parameters)
    left = np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1)
    right = inside.w @ output_whitening(signals.residual_covariance)[0]
    sizes, weights = (np.linalg.norm(part, axis=(1, 2)) for part in (left, right))
    if layer.num_heads <= 1 or not (sizes.all() and weights.all()):
        return None
    left, right = left / sizes[:, None, None], right / weights[:, None, None]
    rng = tools.rng(f"unmix again {layer.num_heads}")
    model, _ = span_models(problem, signals, left, right, rng)
    found = best_start(model, layer.num_heads, rng, np.diag(sizes), tools.engine)
    if 2 * found.fit.share > model.solve(np.diag(sizes)).share:
        return None
    scores = np.tensordot(found.coordinates, left, axes=1)
    mixed = Parameters(scores[:, :-1], inside.w, scores[:, -1], inside.output_bias)
    return AttentionLayer(*signals.white.leave(mixed), causal=layer.causal)
