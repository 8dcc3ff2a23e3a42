"""The rank of the heads, from the singular values of their estimates and the noise that the moment left in them.

The rank of a head is the number of singular values of Theta_i (white coordinates) above the edge of the noise,
2 sqrt(h / pairs) / s; None when it is not clearly below the dimension.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._rows import output_whitening
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment._moment import Moment
from attnlearn.solve._rank import profile, rank_above


def infer_rank(
    signals: Signals, moment: Moment, a: Float[np.ndarray, "m l"], scores: Float[np.ndarray, "m u r"]
) -> tuple[int | None, Float[np.ndarray, "m r"], Float[np.ndarray, "m"]]:
    """The largest rank of the heads, each head's singular values and the noise edge under them.

    None when factors would not pay, or when no value stands out: heads that attend by their query bias alone.
    """
    r = scores.shape[2]
    spectrum = np.linalg.svd(scores[:, :-1], compute_uv=False)  # refine keeps c apart from the factors
    whitening = output_whitening(signals.residual_covariance)[0]
    total = np.trace(whitening @ signals.residual_covariance @ whitening)
    # floor = sqrt(h/pairs) (sqrt(total) + sqrt(r)): a left vector carries N v / s, whose norm as an r x r matrix
    # is sqrt(h/pairs) times 2 sqrt(r) / sqrt(r).
    unit = 2 * moment.floor / (np.sqrt(total) + np.sqrt(r))
    edge = np.sqrt(np.sum((a * unit / moment.values[: a.shape[1]]) ** 2, axis=1))
    rank = rank_above(spectrum, calibration.ABOVE_FLOOR * edge[:, None])
    # A rank one too large leaves the refinement without curvature in the idle columns, so a drop that all heads
    # share counts more than the estimated edge.
    shared = profile(spectrum)
    # Only in the first half (the last singular values of any square matrix spread out again) and only down to the
    # noise: a strong query bias makes the first value of a head of full rank stand out as well.
    falls, after = shared[:-1] / shared[1:], shared[1 : r // 2 + 1]
    usual = np.array(
        [falls[i + 1 : i + 1 + calibration.VECTORS // 4].max(initial=1.0) for i in range(r // 2)]
    )
    falls, noise = falls[: r // 2], 2 * calibration.CLEAR * np.median(edge)
    step = (falls > calibration.GAP) & (falls - 1 > calibration.FAR_MORE * (usual - 1))
    drops = np.flatnonzero(((falls > calibration.CLEAR) | step) & (after < noise)) + 1
    rank = int(drops[-1]) if len(drops) else rank
    return (rank if 1 <= rank <= r // 2 else None), spectrum, edge
