"""Remix: heads that refine found are unmixed once more, inside their own span.

To first order in the scores the outputs depend on sum_i vec(Theta_i) vec(W_i)^T alone, which every mixture of the heads
leaves as it is. Weak attention tells the mixture by its second order only, less than the error of the moment's span. Refine
mends the span and then stalls in the valley of the mixtures; in the span that it leaves, the m^2 numbers of `unmix` lead out
of it (d = 16, m = 4, scores of size 0.03: heads 60 % off, and 1.4 % after).

Cost: an unmixing of a few hundred sequences, after a fit that is not exact. What can fail: nothing is lost, because other
mixtures are taken only if they explain the examples much better.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._count import best_start, span_models
from attnlearn.recovery.spectral._rows import output_whitening
from attnlearn.recovery.spectral._state import Problem, State, looked_at
from attnlearn.recovery.spectral._unmix import from_white, to_white


def remix(problem: Problem, state: State, layer: AttentionLayer, tools: Tools) -> AttentionLayer | None:
    """Other mixtures of the layer's heads, if they explain what the heads leave of the outputs; their W is not refitted."""
    theta, query_bias, w, bias = to_white(state, layer.theta, layer.query_bias, layer.w, layer.output_bias)
    left = np.concatenate([theta, query_bias[:, None]], axis=1)
    right = w @ output_whitening(state.residual_covariance)[0]
    sizes, weights = (np.linalg.norm(part, axis=(1, 2)) for part in (left, right))
    if layer.num_heads < 2 or not (sizes.all() and weights.all()):
        return None
    left, right = left / sizes[:, None, None], right / weights[:, None, None]
    problem, rng = looked_at(problem, state), tools.rng(f"remix {layer.num_heads}")
    span = dataclasses.replace(state, query_basis=left, value_basis=right)
    model, _ = span_models(problem, span, layer.num_heads, rng)
    found = best_start(model, layer.num_heads, rng, np.diag(sizes), tools.engine)
    if found.fit.share > calibration.REMIX_BETTER * model.solve(np.diag(sizes)).share:
        return None
    scores = np.tensordot(found.coordinates, left, axes=1)
    return layer.replace(**from_white(state, scores[:, :-1], scores[:, -1], w, bias))
