"""Whether the own token enters the outputs as itself: a residual connection, which is no part of an attention layer.

Rows y_a are regressed on their own token x_a and on the mean of the others, each less its mean at that position: 2 d unknowns
however many tokens there are. What the own token adds beyond any other one is compared with the identity on the tokens' support.
A head that attends to its own token with W = I looks the same, so the signal alone decides nothing; the fit of y - x does.

| 3,000 examples | multiple | cosine |
|---|---|---|
| 120 attention layers: five kinds of tokens, own-token attention of three strengths | at most 0.20 | at most 0.18 |
| the same with the tokens added | 0.88 to 1.20 | at least 0.58 |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.solve._white import Whitening


class OwnToken(NamedTuple):
    """The multiple of itself with which the own token enters the outputs, and how like the identity that part is."""

    multiple: float
    cosine: float

    @property
    def residual(self) -> bool:
        """Whether a residual connection is likely."""
        near_one = calibration.HALVED < self.multiple < calibration.CLEAR
        return near_one and self.cosine > calibration.HALVED


NONE = OwnToken(0.0, 0.0)


def own_token(problem: Problem, causal: bool, white: Whitening) -> OwnToken:
    """The signal, from as many sequences as 2 d unknowns ask for; none where outputs are no tokens, or tokens are padded."""
    examples = problem.examples
    k, d = examples.tokens, examples.dim
    wanted = -(-calibration.PLENTY * 2 * d // k)
    side = problem.fit_side(wanted)
    if examples.out_dim != d or side.mask is not None:
        return NONE
    x, y = (part.astype(np.float64) - part.mean(axis=0, dtype=np.float64) for part in (side.x, side.y))
    if causal:
        before = np.cumsum(x, axis=1) - x
        others, rows = before / np.maximum(np.arange(k), 1)[:, None], slice(1, None)
        seen = np.mean(np.arange(1, k))
    else:
        others, rows, seen = (x.sum(axis=1, keepdims=True) - x) / (k - 1), slice(None), k - 1
    own, others, out = (part[:, rows].reshape(-1, d) for part in (x, others, y))
    basis, r = np.linalg.qr(white.basis)[0], white.directions
    solution = np.linalg.lstsq(np.concatenate([own @ basis, others @ basis], axis=1), out, rcond=None)[0]
    inside = solution @ basis
    extra = inside[:r] - inside[r:] / seen  # uniform attention weighs own and other tokens alike
    multiple = float(np.trace(extra)) / r
    outside = np.sum(solution[:r] ** 2) - np.sum(inside[:r] ** 2)  # what leaves the support is no identity
    size = np.sqrt(max(float(np.sum(extra**2) + outside), np.finfo(float).tiny))
    return OwnToken(multiple, multiple * np.sqrt(r) / size)
