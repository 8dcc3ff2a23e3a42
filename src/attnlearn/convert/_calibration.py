"""Constants of the converters, each with its reason."""

from __future__ import annotations

import numpy as np

CHECK_SEQUENCES, CHECK_TOKENS = 2, 5
"""Tokens of a self-check: more than two keys (below three a head has an equal partner), odd, and cheap."""

LAYER_COPIES = 3
"""float64 copies of Theta and W while a layer is assembled: a product, the scaled product, and what the layer keeps."""

CHECK_SCORE = 3.0
"""Largest score in a self-check. Large enough that the softmax is far from linear, so that a wrong scale or
orientation shows; small enough that it does not saturate, which would hide one."""


def check_tolerance(inner_dim: int, score_size: float) -> float:
    """Relative error allowed between two ways to compute one layer in float64.

    Sums over `inner_dim` terms round by about sqrt(inner_dim) eps; scores built from queries and keys of
    product `score_size` (a large key bias makes it large, and then cancels) by that multiple more. Measured on
    200 random layers (d = 4 to 256, 1 to 8 heads of 1 to 32, biases 0.1 to 10): at most a hundredth of this
    tolerance. A transposed or missing factor gives errors of order 1.
    """
    return 10 * float(np.finfo(np.float64).eps) * np.sqrt(inner_dim) * max(1.0, score_size)


def export_tolerance(dtype: np.dtype) -> float:
    """Relative part of a head that an export may drop when it picks the rank of the factors.

    A product of two rank-r factors, rounded, has a tail of singular values of a few eps; 64 eps is above it
    and keeps float64 round trips below 1e-12.
    """
    return 64 * float(np.finfo(dtype).eps)


FORWARD_TOLERANCE = 1e-6
"""Relative difference allowed between a float64 copy of a module and the layer. Measured on 11 kinds of
modules: below 1e-15, but 1.3e-7 for OPT, CLIP and ViT, which take the softmax in float32 whatever their dtype.
Terms that are not plain attention are far larger: a soft cap at 50, say, moves a score of 3 by 4e-3."""

POSITION_TOLERANCE = 1e-5
"""The same for modules with positions: transformers makes cosines and sines in float32 whatever the dtype. Measured on 12 kinds of
modules: below 1e-6. A wrong pairing of coordinates, a wrong base or a missing table gives errors of 1e-2 and more."""
