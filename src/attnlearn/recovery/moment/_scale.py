"""The token scale at which a layer shows itself, when we may choose the tokens.

Scores grow with the square of the tokens. Too small, and attention is a plain average: nothing but the linear part.
Too large, and it is one-hot: the first-order model behind the moment fails. In between, the share of the output
variance that a linear fit leaves is between GOOD_SHARES. It grows with the scale, so the scale is found by bisection.
Cost: a dozen small batches of queries to the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn.data import as_examples
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._statistics import nonlinear_share


def choose_scale(model: Any, oracle: Callable[[np.ndarray], np.ndarray], *, seed: int = 0) -> float:
    """The factor by which tokens of the data model `model` should be multiplied before `oracle` sees them.

    1.0 when the tokens already show the layer well (a share within GOOD_SHARES).

    >>> from attnlearn import AttentionLayer, data
    >>> weak = AttentionLayer.random(num_heads=2, dim=6, scale=0.02)
    >>> choose_scale(data.Gaussian(tokens=4, dim=6), weak) > 4
    True
    """
    needed = int(np.ceil(calibration.ROWS_PER_UNKNOWN * (2 * model.dim + 1) / model.tokens))
    x = model.sample(max(needed, 2 * calibration.SAMPLE), seed=seed)

    def share(scale: float) -> float:
        tokens = (scale * x).astype(x.dtype)
        return nonlinear_share(as_examples(tokens, np.asarray(oracle(tokens))))

    here, (lowest, highest) = share(1.0), calibration.GOOD_SHARES
    if lowest <= here <= highest:
        return 1.0
    target, most = (lowest + highest) / 2, calibration.PLENTY
    low, high = (1.0, most) if here < target else (1 / most, 1.0)
    while high > (1 + calibration.ALIKE) * low:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if share(middle) < target else (low, middle)
    return float(np.sqrt(low * high))
