"""Condense: the few heads whose mixtures a wide fit is made of.

To first order in the scores the outputs show D = sum_i vec([Theta_i; c_i]) vec(W_i)^T alone. Beyond the first order a query's outputs
are a sum of fractions, one for each vector of scores. Heads of an exact fit that share a fraction share its values, so their parts
of D add up to the part of the one true head, and D is that of the truth however many heads the fit has. Which heads share may
differ from query to query, as it does on few words. None of them is needless then, and the cost of dropping a head has no leap. But
D has the rank of the truth, and its singular values fall behind it:

| wide fit | fall |
|---|---|
| default-initialised BERT, GPT-2 and ViT | 17 to 1,000 |
| seven words in nine dimensions, four heads, select error 2e-4 to 3e-3 (15 starts, five layers) | 15 to 1,000 in 12, none in 1, behind the fifth head or later in 2 |

The span is then unmixed with m^2 unknowns, which the second order of the scores determines.

Cost: a singular value decomposition from the factors, and an unmixing. What can fail: no fall that is clear; a wide fit that is no
good yet, which shows a head too many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._rows import output_whitening
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment import best_start, span_models
from attnlearn.solve._rank import largest_fall, profile


class Span(NamedTuple):
    """Singular values of D, and its singular vectors as matrices."""

    values: Float[np.ndarray, "l"]
    left: Float[np.ndarray, "l r1 r"]
    right: Float[np.ndarray, "l r o"]


def spanned(left: Float[np.ndarray, "m r1 r"], right: Float[np.ndarray, "m r o"]) -> Span:
    """The singular value decomposition of D = sum_i vec(left_i) vec(right_i)^T, from its factors.

    >>> rng = np.random.default_rng(0)
    >>> one = rng.standard_normal((1, 3, 2)), rng.standard_normal((1, 2, 4))
    >>> twice = spanned(*(np.concatenate([side, side]) for side in one))
    >>> bool(twice.values[1] < 1e-12 * twice.values[0])
    True
    """
    (qa, ra), (qb, rb) = (np.linalg.qr(side.reshape(len(side), -1).T) for side in (left, right))
    u, values, vt = np.linalg.svd(ra @ rb.T, full_matrices=False)
    return Span(values, (qa @ u).T.reshape(-1, *left.shape[1:]), (qb @ vt.T).T.reshape(-1, *right.shape[1:]))


class Mixed(NamedTuple):
    """The span of a layer's heads, and how many heads they are mixtures of."""

    span: Span
    heads: int


def mixed_heads(problem: Problem, signals: Signals, layer: AttentionLayer) -> Mixed | None:
    """The heads, fewer than the layer has, of which all of its heads are mixtures; None if there is no clear number of them."""
    inside = signals.white.enter(layer.parameters)
    left = np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1)
    span = spanned(left, inside.w @ output_whitening(signals.residual_covariance)[0])
    heads = problem.num_heads or largest_fall(span.values, 1 / calibration.DIGIT)
    return None if heads is None or heads >= min(layer.num_heads, len(span.values)) else Mixed(span, heads)


def condensed(
    problem: Problem, signals: Signals, layer: AttentionLayer, mixed: Mixed, rng: np.random.Generator
) -> tuple[AttentionLayer, int | None]:
    """A start with as many heads as `layer` mixes, and their rank (None: full)."""
    (span, heads), inside = mixed, signals.white.enter(layer.parameters)
    model, _ = span_models(problem, signals, span.left[:heads], span.right[:heads], rng)
    found = best_start(model, heads, rng)
    scores = np.tensordot(found.coordinates, span.left[:heads], axes=1)
    spectra = np.linalg.svd(scores[:, :-1], compute_uv=False)
    rank = largest_fall(profile(spectra)[: signals.directions // 2 + 1], calibration.CLEAR)
    start = Parameters(scores[:, :-1], np.zeros_like(inside.w[:heads]), scores[:, -1], inside.output_bias)
    return AttentionLayer(*signals.white.leave(start), causal=layer.causal), rank
