"""Constants of the converters, each with its reason."""

from __future__ import annotations

import numpy as np

CHECK_SEQUENCES, CHECK_TOKENS = 2, 5
"""Tokens of a self-check: more than two keys (below three a head has a twin), odd, and cheap."""

CHECK_SCORE = 3.0
"""Largest score in a self-check. Large enough that the softmax is far from linear, so that a wrong scale or
orientation shows; small enough that it does not saturate, which would hide one."""


def check_tolerance(dtype: np.dtype, inner_dim: int) -> float:
    """Relative error allowed between two ways to compute one layer in float64 from weights in `dtype`.

    Rounding Theta and W to `dtype` moves scores of size at most CHECK_SCORE by a relative eps, and sums over
    `inner_dim` terms add a factor of at most sqrt(inner_dim). Measured on 200 random layers (d = 4 to 256,
    1 to 8 heads): at most 2 eps. A transposed or missing factor gives errors of order 1.
    """
    return 100 * float(np.finfo(dtype).eps) * np.sqrt(inner_dim)


def export_tolerance(dtype: np.dtype) -> float:
    """Relative part of a head that an export may drop when it picks the rank of the factors.

    A product of two rank-r factors, rounded, has a tail of singular values of a few eps; 64 eps is above it
    and keeps float64 round trips below 1e-12.
    """
    return 64 * float(np.finfo(dtype).eps)
