"""What is established about a compressed layer: claim C1, its error against the source on examples read once.

C2 and C3 have no meaning here: the number of heads was asked for, and no true parameters exist to be near to. C1 is a
statement of fact, whatever the error is; only a `target` can make it fail.
"""

from __future__ import annotations

import numpy as np

from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn._layer import AttentionLayer
from attnlearn.solve._calibration import DELTA, UNCOVERED
from attnlearn.solve._certify import Held, unit_errors


def certify_compressed(
    layer: AttentionLayer, held: Held, scale: float, target: float | None, delta: float = DELTA
) -> Certificate:
    """C1 for `layer` on the certify examples `held`, whose outputs are the source's."""
    errors = unit_errors(layer, held, scale)
    eps, uncovered = float(errors.max()), float(np.log(1 / delta) / len(errors))
    text = "largest error on certify examples"
    if target is None:
        error = Check("C1.error", Status.NOT_APPLICABLE, eps, None, "relative error", text)
    else:
        error = Check.compare("C1.error", eps, target, unit="relative error", text=text)
    coverage = Check.compare(
        "C1.coverage",
        uncovered,
        UNCOVERED,
        unit="fraction of inputs",
        text="inputs about which nothing is said",
    )
    claim = Claim(
        "C1",
        f"the error against the source is at most {eps:.3g} of an output's norm on at least "
        f"{100 * max(0.0, 1 - uncovered):.2f} % of inputs",
        coverage.status is Status.HOLDS and error.status is not Status.FAILS,
        {"error": eps, "fraction": max(0.0, 1 - uncovered), "examples": len(errors)},
        1 - delta,
    )
    return Certificate((claim,), (error, coverage))
