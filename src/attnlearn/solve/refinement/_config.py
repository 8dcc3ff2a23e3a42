"""The limits of a refinement, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration


@dataclass(frozen=True)
class RefineConfig:
    """Limits of `refine`; the defaults suit starts within 40 % of the truth.

    tolerance   Stop when the relative residual reaches this value (0: continue to rounding).
    stop_at_tolerance   Do not solve more accurately than `tolerance` needs, and start with fewer examples.
    max_examples, equations_per_unknown   The most examples, and how many equations per unknown the first ones give.
    average     Take more examples when the residual is noise.
    lower       Lower the rank when the scores turn out to have less.
    float64_solves   Solve in float64 where float32 may be what stops the descent.
    negligible  A step that promises less than this share of the squared residual is the last one: the optimum is reached.
    combine_first   First fit random combinations of the outputs, which is cheaper; only for fits that should become exact.
    seed        Draws the examples and the combinations of outputs.
    deadline    A value of `time.monotonic()` after which the best layer so far is returned (None: no limit).

    >>> RefineConfig(max_steps=5).max_steps
    5
    """

    max_steps: int = calibration.STEPS_MOST
    max_inner: int = calibration.INNER_MOST
    tolerance: float = 0.0
    stop_at_tolerance: bool = False
    damping: float = calibration.ROUGH
    equations_per_unknown: float = calibration.EQUATIONS_PER_UNKNOWN
    max_examples: int | None = None
    average: bool = True
    lower: bool = True
    float64_solves: bool = False
    negligible: float = calibration.NEGLIGIBLE**2
    combine_first: bool = False
    seed: int = 0
    deadline: float | None = None


@dataclass(frozen=True)
class Refined:
    """What `refine` returns: the layer, its relative residual, one dict per outer step, and why it stopped.

    `rank` is the rank at which every Theta_i was kept in the end, None when they were free. `residual` is ‖F - y‖ over the
    spread of y about its mean, on examples that were not used when some were left, otherwise on those used. `examples` is
    the number used last, `used` their places (None where nothing was fitted).
    """

    layer: AttentionLayer
    residual: float
    stop: str
    examples: int
    rank: int | None
    steps: list[dict[str, Any]] = field(repr=False)
    used: np.ndarray | None = field(default=None, repr=False)
