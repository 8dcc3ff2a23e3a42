"""C1 beside errors: about the outputs as recorded where these are exact enough, otherwise about the layer behind the errors.

The second follows from the spread: each draw of the parameters changes the outputs of an input, and the changes of all draws bound the
error there (`_spread.tail`). An input exceeds its own bound with chance exp(-t), so more than a share q of all inputs do with chance
exp(-t) / q at most.
"""

from __future__ import annotations

import numpy as np

from attnlearn._certificate import Check, Claim, Status
from attnlearn.solve._batch import clipped_norms, largest_of_groups
from attnlearn.solve.certification import function_claim
from attnlearn.solve.noise._halves import Halves
from attnlearn.solve.noise._setting import CONFIDENCE, Setting
from attnlearn.solve.noise._spread import Spread, tail


def function_beside_errors(at: Setting, found: Spread, halves: Halves | None) -> tuple[Claim, list[Check]]:
    """C1 about the outputs as recorded; where they are not exact enough, about the layer behind the errors."""
    claim, checks = function_claim(
        at.layer, at.held, at.scale, limit=at.accuracy, unit=at.unit, where=at.where, name="error of the recorded outputs"
    )  # fmt: skip
    recorded = claim.value["error"]
    if claim.established or halves is None or recorded <= at.accuracy:
        return claim, checks
    # An input exceeds its own bound with chance exp(-t); more than `rest` of all inputs do with chance 1 - CONFIDENCE at most.
    rest = 1 - CONFIDENCE
    errors = _behind(at, found, halves, np.log(1 / rest**2))
    behind = float(errors.max())
    fraction = claim.value["fraction"] - rest
    checks = [
        Check.compare(
            "C1.error", behind, at.accuracy, unit="relative error",
            text=f"error against the layer behind the errors (the recorded outputs differ by {recorded:.2g}):",
        ),
        *checks[1:],
    ]  # fmt: skip
    text = (
        f"function error against the layer behind the errors <= {behind:.3g} of an output's norm (of {claim.value['floor']:.3g} where "
        f"the norm is smaller) on at least {100 * fraction:.2f} % of {at.unit}s{at.where}"
    )
    stated = Claim.stated(
        "C1", text, all(check.status is Status.HOLDS for check in checks),
        claim.value | {"error": behind, "fraction": fraction, "recorded": recorded, "against": "layer"}, CONFIDENCE,
        assumes=(*claim.assumes, at.errors), scope=claim.scope | {"fraction": fraction},
    )  # fmt: skip
    return stated, checks


def _behind(at: Setting, found: Spread, halves: Halves, t: float) -> np.ndarray:
    """For every unit a bound on the error of the function, by the draws of the spread and the bias of the halves."""
    layer, x, mask = at.layer.astype(np.float64), at.held.x.astype(np.float64), at.held.mask
    ours = layer(x, mask)
    moved = np.stack(
        [
            layer.replace(**{name: getattr(layer, name) + part for name, part in draw._asdict().items()})(x, mask) - ours
            for draw in found.draws
        ],
        axis=1,
    )  # fmt: skip
    moved = moved.reshape(len(x), len(found.draws), -1)
    bias = (halves.first(x, mask) + halves.second(x, mask)) / 2 - ours
    bound = tail(moved @ np.swapaxes(moved, 1, 2), t) + np.linalg.norm(bias, axis=(1, 2))
    relative = bound / clipped_norms(ours, at.scale)
    return relative if at.held.groups is None else largest_of_groups(relative, at.held.groups)
