"""What attention does on the given tokens: spread of the scores, saturation, the share that is not an average.

Cost: patterns and scores of a thousand sequences.
"""

from __future__ import annotations

import numpy as np

from attnlearn._certificate import Check
from attnlearn._layer import AttentionLayer
from attnlearn.diagnosis import _calibration as calibration
from attnlearn.recovery._calibration import LINEAR_SHARE

TEXTS = {
    "attention.scores": "standard deviation of the weakest head's scores",
    "attention.saturation": "share of rows in which one key takes all",
}


def attention_checks(layer: AttentionLayer, x: np.ndarray) -> list[Check]:
    """Spread and saturation of the heads' scores on the tokens `x`."""
    few = x[: calibration.PATTERN_SEQUENCES]
    scores = layer.scores(few).astype(float)
    spread = np.sqrt(np.mean((scores - scores.mean(axis=3, keepdims=True)) ** 2, axis=(0, 2, 3)))
    largest = layer.patterns(few).max(axis=3)
    rows = largest[:, :, 1:] if layer.causal else largest  # the first row of a causal layer has one key
    return [
        Check.compare(
            "attention.scores",
            float(spread.min()),
            calibration.SCORES_LEAST,
            text=TEXTS["attention.scores"],
            at_most=False,
        ),
        Check.compare(
            "attention.saturation",
            float(np.mean(rows > calibration.ONE_HOT)),
            calibration.SATURATED,
            text=TEXTS["attention.saturation"],
        ),
    ]


def nonlinear_check(share: float, dtype: np.dtype) -> Check:
    """The share of the output variance that no linear function of the tokens explains."""
    return Check.compare(
        "attention.nonlinear",
        share,
        LINEAR_SHARE[np.dtype(dtype).name],
        text="share of the output variance that is not linear in the tokens",
        at_most=False,
    )
